# SPDX-License-Identifier: Apache-2.0
"""Functions of PyTorch and NumPy that are compositions of the operations of expressions."""

import math
from typing import Any, Callable, Dict

import numpy as np

from ._expression import _UFUNCS, Expression, expression_of, maximum, minimum, where

_exp: Callable[[Any], Expression] = _UFUNCS["exp"]
_log: Callable[[Any], Expression] = _UFUNCS["log"]
_tanh: Callable[[Any], Expression] = _UFUNCS["tanh"]
_floor: Callable[[Any], Expression] = _UFUNCS["floor"]


def _is_integer(x: Expression) -> bool:
    return x._of.type() != "number"


def _number(x: Any) -> Expression:
    return expression_of(x).astype(float)


# ---- rounding and signs --------------------------------------------------------------------------


def trunc(x: Any) -> Expression:
    """Rounds towards 0."""
    y = expression_of(x)
    return +y if _is_integer(y) else where(y < 0, -_floor(-y), _floor(y))


def _round(x: Any, *, decimals: int = 0) -> Expression:
    """Rounds to the nearest integer, and halves to the even one."""
    if decimals != 0:
        raise TypeError(f"torch.round of an expression takes decimals 0, got {decimals!r}")
    y = expression_of(x)
    if _is_integer(y):
        return +y
    # y + 0.5 may be inexact. y - below is inexact only for -0.5 < y < 0, where the result is 0.
    below = _floor(y)
    rest = y - below
    return below + ((rest > 0.5) | ((rest == 0.5) & (below % 2 != 0))).astype(float)


def _sign(x: Any) -> Expression:
    y = expression_of(x)
    return (
        where(y > 0, 1, where(y < 0, -1, 0))
        if _is_integer(y)
        else where(y > 0, 1.0, where(y < 0, -1.0, y * 0))
    )


def _fmod(x: Any, y: Any) -> Expression:
    """The remainder with the sign of x."""
    a, b = expression_of(x), expression_of(y)
    rest = abs(a) % abs(b)
    return where(a < 0, -rest, rest)


# ---- functions of numbers ------------------------------------------------------------------------


def _log1p(x: Any) -> Expression:
    return _log(1 + _number(x))


def _expm1(x: Any) -> Expression:
    return _exp(x) - 1


def _tan(x: Any) -> Expression:
    return _UFUNCS["sin"](x) / _UFUNCS["cos"](x)


def _sinh(x: Any) -> Expression:
    return (_exp(x) - _exp(-expression_of(x))) / 2


def _cosh(x: Any) -> Expression:
    return (_exp(x) + _exp(-expression_of(x))) / 2


def _logaddexp(x: Any, y: Any) -> Expression:
    a, b = expression_of(x), expression_of(y)
    apart = where(a == b, 0.0, abs(a - b))  # equal infinities have no difference
    return maximum(a, b) + _log(1 + _exp(-apart))


def _isnan(x: Any) -> Expression:
    y = _number(x)
    return ~(y == y)


def _isinf(x: Any) -> Expression:
    return abs(_number(x)) == math.inf


def _isfinite(x: Any) -> Expression:
    return abs(_number(x)) < math.inf


# ---- error function ------------------------------------------------------------------------------

# Up to |x| = 1, erf(x) is x times a series in x^2. Above, 1 - erf(x) is exp(-x^2) times a
# polynomial in t = (x - 3) / (x + 3) that interpolates at Chebyshev's points. Above 6, erf(x) is 1
# in float64.
_ERF_TERMS, _ERFC_TERMS, _ERF_END = 18, 22, 6.0


_ERF_LOW, _ERF_HIGH = (1 - 3) / (1 + 3), (_ERF_END - 3) / (_ERF_END + 3)
_ERF_SERIES = [
    2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1))
    for n in range(_ERF_TERMS)
]


def _scaled_erfc(points: Any) -> Any:
    """exp(x^2) erfc(x) at points in [-1,1], which are mapped to t in [_ERF_LOW,_ERF_HIGH]."""
    t = (_ERF_LOW + _ERF_HIGH) / 2 + points * (_ERF_HIGH - _ERF_LOW) / 2
    xs = 3 * (1 + t) / (1 - t)
    return [math.erfc(x) * math.exp(x * x) for x in xs]


_ERFC_COEFFICIENTS = np.polynomial.chebyshev.chebinterpolate(_scaled_erfc, _ERFC_TERMS).tolist()


def _erf(x: Any) -> Expression:
    y = _number(x)
    near = maximum(minimum(y, 1.0), -1.0)
    square = near * near
    inner = expression_of(_ERF_SERIES[-1])
    for c in reversed(_ERF_SERIES[:-1]):
        inner = inner * square + c
    far = minimum(maximum(abs(y), 1.0), _ERF_END)
    t = (far - 3) / (far + 3)
    point = (t - (_ERF_LOW + _ERF_HIGH) / 2) * (2 / (_ERF_HIGH - _ERF_LOW))
    last, before = expression_of(0.0), expression_of(0.0)  # Clenshaw's recurrence
    for c in reversed(_ERFC_COEFFICIENTS[1:]):
        last, before = 2 * point * last - before + c, last
    outer = 1 - _exp(-(far * far)) * (point * last - before + _ERFC_COEFFICIENTS[0])
    return where(abs(y) < 1, near * inner, where(y < 0, -outer, outer))


# ---- activations ---------------------------------------------------------------------------------


def _sigmoid(x: Any) -> Expression:
    return expression_of(1) / (1 + _exp(-expression_of(x)))


def _relu(x: Any) -> Expression:
    return maximum(x, 0)


def _silu(x: Any) -> Expression:
    return expression_of(x) * _sigmoid(x)


def _gelu(x: Any, approximate: str = "none") -> Expression:
    if approximate == "none":
        return 0.5 * expression_of(x) * (1 + _erf(x * math.sqrt(0.5)))
    if approximate == "tanh":
        cubic = x + 0.044715 * x**3
        return 0.5 * expression_of(x) * (1 + _tanh(math.sqrt(2 / math.pi) * cubic))
    raise TypeError(
        f"torch.gelu of an expression takes approximate 'none' or 'tanh', got {approximate!r}"
    )


def _softplus(x: Any, beta: float = 1, threshold: float = 20) -> Expression:
    scaled = x * beta
    return where(scaled > threshold, x, _log(1 + _exp(minimum(scaled, threshold))) / beta)


def _log_sigmoid(x: Any) -> Expression:
    return minimum(x, 0) - _log(1 + _exp(-abs(x)))


def _elu(x: Any, alpha: float = 1.0) -> Expression:
    return where(x > 0, x, alpha * (_exp(minimum(x, 0)) - 1))


def _leaky_relu(x: Any, negative_slope: float = 0.01) -> Expression:
    return where(x > 0, x, negative_slope * x)


def _hardtanh(x: Any, min_val: float = -1.0, max_val: float = 1.0) -> Expression:
    return minimum(maximum(x, min_val), max_val)


def _relu6(x: Any) -> Expression:
    return _hardtanh(x, 0.0, 6.0)


def _softsign(x: Any) -> Expression:
    y = expression_of(x)
    return y / (1 + abs(y))


def _mish(x: Any) -> Expression:
    return expression_of(x) * _tanh(_softplus(x))


COMPOSED: Dict[str, Callable[..., Expression]] = {
    "trunc": trunc,
    "fix": trunc,
    "round": _round,
    "sign": _sign,
    "fmod": _fmod,
    "log1p": _log1p,
    "expm1": _expm1,
    "tan": _tan,
    "sinh": _sinh,
    "cosh": _cosh,
    "logaddexp": _logaddexp,
    "isnan": _isnan,
    "isinf": _isinf,
    "isfinite": _isfinite,
    "erf": _erf,
    "erfc": lambda x: 1 - _erf(x),
    "sigmoid": _sigmoid,
    "relu": _relu,
    "silu": _silu,
    "gelu": _gelu,
    "softplus": _softplus,
    "log_sigmoid": _log_sigmoid,
    "logsigmoid": _log_sigmoid,
    "elu": _elu,
    "leaky_relu": _leaky_relu,
    "hardtanh": _hardtanh,
    "relu6": _relu6,
    "softsign": _softsign,
    "mish": _mish,
}
