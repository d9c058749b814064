# SPDX-License-Identifier: Apache-2.0
"""Finds the range of an integer expression before a call, and the bits that may be 1 in it.

Indices that cannot be negative need no wrapping, and bitwise operations are sums over the bits that
may be 1 in both operands.
"""

from typing import Any, List, NamedTuple, Tuple

LEAST, LARGEST = -(2**31), 2**31 - 1


class Known(NamedTuple):
    """The integers low .. high with no bit outside `bits`, a mask of 32 bits (two's complement)."""

    low: int
    high: int
    bits: int


ANY = Known(LEAST, LARGEST, 2**32 - 1)


def within(low: int, high: int) -> Known:
    """The integers low .. high; any integer if 32 bits cannot hold them."""
    if low < LEAST or high > LARGEST:
        return ANY
    if low == high:
        return Known(low, high, low & 2**32 - 1)
    return Known(low, high, 2**32 - 1 if low < 0 else (1 << high.bit_length()) - 1)


def known(x: Any) -> Known:
    """Returns what is known of an expression; no recursion, since expressions may be deep."""
    pending: List[Any] = [x]
    while pending:
        top = pending[-1]
        if top._known is None:
            missing = [operand for operand in top._made[1:] if operand._known is None]
            if missing:
                pending += missing
                continue
            top._known = _of(top)
        pending.pop()
    found: Known = x._known
    return found


def _of(x: Any) -> Known:
    kind = x._of.type()
    if kind == "truth":
        return within(0, 1)
    if kind == "number" or not x._made:
        return ANY
    name, operands = x._made[0], x._made[1:]
    if name == "to_integer" and operands[0]._of.type() == "number":
        return ANY
    found = _of_operation(name, tuple(operand._known for operand in operands))
    return Known(max(found.low, LEAST), min(found.high, LARGEST), found.bits)


def _of_operation(name: str, operands: Tuple[Known, ...]) -> Known:
    a, b = operands[0], operands[-1]
    if name == "to_integer":
        return a
    if name == "negative":
        return within(-a.high, -a.low)
    if name == "abs":
        ends = (abs(a.low), abs(a.high))
        return within(0 if a.low <= 0 <= a.high else min(ends), max(ends))
    if name == "+":
        sum_ = within(a.low + b.low, a.high + b.high)
        carries = a.low < 0 or b.low < 0 or a.bits & b.bits
        return sum_ if carries else sum_._replace(bits=sum_.bits & (a.bits | b.bits))
    if name == "-":
        return within(a.low - b.high, a.high - b.low)
    if name == "*":
        return _product(a, b)
    if name == "/":
        return _quotient(a, b)
    if name == "%":
        return _remainder(a, b)
    if name == "minimum":
        return within(min(a.low, b.low), min(a.high, b.high))
    if name == "maximum":
        return within(max(a.low, b.low), max(a.high, b.high))
    if name == "where":
        b, c = operands[1], operands[2]
        return Known(min(b.low, c.low), max(b.high, c.high), b.bits | c.bits)
    return ANY


def _power_of_2(x: Known) -> int:
    """Returns n if x is the constant 2^n, else -1."""
    is_power = x.low == x.high > 0 and x.low & (x.low - 1) == 0
    return x.low.bit_length() - 1 if is_power else -1


def _product(a: Known, b: Known) -> Known:
    corners = [p * q for p in (a.low, a.high) for q in (b.low, b.high)]
    product = within(min(corners), max(corners))
    shift = _power_of_2(b)
    if shift < 0 or product.low < 0:
        return product
    return product._replace(bits=product.bits & (a.bits << shift))


def _quotient(a: Known, b: Known) -> Known:
    if b.low <= 0 <= b.high:
        return ANY
    corners = [p // q for p in (a.low, a.high) for q in (b.low, b.high)]
    quotient = within(min(corners), max(corners))
    shift = _power_of_2(b)
    if shift < 0 or quotient.low < 0:
        return quotient
    return quotient._replace(bits=quotient.bits & (a.bits >> shift))


def _remainder(a: Known, b: Known) -> Known:
    if b.low <= 0:
        return within(b.low + 1, 0) if b.high < 0 else ANY
    if a.low >= 0 and a.high < b.low:
        return a
    rest = within(0, b.high - 1)
    return rest._replace(bits=rest.bits & a.bits) if _power_of_2(b) >= 0 else rest


def runs(bits: int) -> List[Tuple[int, int]]:
    """The runs of ones in 32 bits: pairs (lowest bit, bit after the highest)."""
    found = []
    start = 0
    while bits >> start:
        if bits >> start & 1:
            end = start
            while bits >> end & 1:
                end += 1
            found.append((start, end))
            start = end
        start += 1
    return found
