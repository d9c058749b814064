# SPDX-License-Identifier: Apache-2.0
"""An independent oracle for attention: dense float64 NumPy, forward and backward.

oracle.py OUTFILE        writes the cases, one text block each:
    case NAME / set KEY VALUE.. / in NAME DTYPE RANK d0 d1 .. + values / want .. + values / end
oracle.py --self-check   checks the oracle itself; exits 1 on any fault
QKV_TEST_SCALE in the environment: the percentage of cases that the self-check recomputes.
"""
import argparse
import os
import sys

import numpy as np

import oracle_check
from oracle_call import evaluate, gradients
from oracle_cases import is_finite, ordinary_cases, possible_pairs
from oracle_philox import known_answers_hold
from oracle_special import special_cases

RANDOM_CASES = 300
AT_LEAST = 450  # cases, ordinary and special, so that none vanish unnoticed
SCALE = int(os.environ.get("QKV_TEST_SCALE", "100"))
if not 1 <= SCALE <= 100:
    sys.exit(f"QKV_TEST_SCALE must be from 1 to 100, not {SCALE}")
DTYPES = {"f": "f64", "i": "i64", "b": "bool"}


# ---- writing -----------------------------------------------------------------------------------


def option_lines(options):
    """The `set` lines of a case; options at their defaults are omitted."""
    if options.norm is not None:
        yield f"norm {options.norm!r}"
    if options.rotary is not None:
        yield "rotary {} {!r} {}".format(*options.rotary)
    yield f"score {options.score}"
    if options.scale is not None:
        yield f"scale {options.scale!r}"
    if options.softcap:
        yield f"softcap {options.softcap!r}"
    yield from (f"mod {name}" for name in options.mods)
    if options.diagonal is not None:
        yield f"diagonal {options.diagonal}"
    if options.causal:
        yield "causal 1"
    if options.window is not None:
        yield "window {} {}".format(*options.window)
    yield from (f"mask_mod {name}" for name in options.mask_mods)
    if options.dropout is not None:
        yield "dropout {!r} {}".format(*options.dropout)
    if options.top:
        yield f"top {options.top}"
    if options.packed:
        yield "packed 1"


def array_lines(word, name, x):
    """Two lines: name, dtype and shape, then the values in C order."""
    x = np.asarray(x)
    as_text = repr if x.dtype.kind == "f" else lambda value: str(int(value))
    yield " ".join(map(str, (word, name, DTYPES[x.dtype.kind], x.ndim, *x.shape)))
    yield " ".join(map(as_text, x.ravel().tolist()))


def case_lines(case):
    yield f"case {case.name}"
    yield from (f"set {line}" for line in option_lines(case.options))
    for word, arrays in (("in", case.inputs), ("want", case.wants)):
        for name, x in arrays.items():
            yield from array_lines(word, name, x)
    yield "end"


def write(path, cases):
    with open(path, "w", encoding="ascii", newline="\n") as file:
        for case in cases:
            file.writelines(line + "\n" for line in case_lines(case))


def gradient_names(case):
    return [name for name in case.wants if name[0] == "d" and name[1:] in case.inputs]


# ---- checking ----------------------------------------------------------------------------------


def all_results(options, inputs):
    """Outputs, and gradients if requested."""
    found = evaluate(options, inputs)
    if "dout" in inputs:
        found.update(gradients(options, inputs))
    return found


def case_errors(case, rng):
    """All errors of one case."""
    yield from oracle_check.forward_errors(case, rng, 3 if is_finite(case) else 50)
    names = gradient_names(case)
    if names and all(np.isfinite(case.wants[name]).all() for name in names):
        with np.errstate(invalid="ignore"):  # NaN and inf under a mask
            yield from oracle_check.gradient_errors(case, rng)
    if is_finite(case):
        return
    if not case.options.packed:
        yield from oracle_check.broken_row_errors(case)
    if case.name.startswith("special_hidden") or "poison" in case.name:
        yield from oracle_check.poison_errors(case, all_results)


def notices_wrong_gradients(case, rng):
    """Tests the check itself: an error of 1e-9 in any gradient of the case must be found."""
    for name in gradient_names(case):
        if not case.wants[name].size:
            continue
        right = case.wants[name]
        case.wants[name] = right + 1e-9 * max(1.0, abs(right).max(initial=0))
        found = any(f"{name} differs" in line for line in oracle_check.gradient_errors(case, rng))
        case.wants[name] = right
        if not found:
            return False
    return True


def self_check(cases, covered):
    """Number of faults; prints each."""
    rng, faults = np.random.RandomState(7), []
    if not known_answers_hold():
        faults.append("philox: the published answers do not come out")
    missing = possible_pairs() - covered
    faults += [f"pair not covered: {sorted(pair)}" for pair in sorted(missing, key=sorted)]
    if len(cases) < AT_LEAST or len({case.name for case in cases}) < len(cases):
        faults.append("too few cases, or two of one name")
    checked = [case for n, case in enumerate(cases) if n * SCALE % 100 < SCALE]
    for case in checked:
        faults += [f"{case.name}: {text}" for text in case_errors(case, rng)]
    if not all(notices_wrong_gradients(case, rng) for case in cases[:20]):
        faults.append("a gradient wrong by 1e-9 was not noticed")
    for text in faults:
        print(f"oracle: {text}", file=sys.stderr)
    print(f"oracle: {len(checked)} cases by loops, those of finite gradients by complex step, "
          f"{len(faults)} faults")
    return len(faults)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("outfile", nargs="?", help="where the cases go")
    parser.add_argument("--self-check", action="store_true", help="check the oracle itself")
    arguments = parser.parse_args()
    if bool(arguments.outfile) == arguments.self_check:
        parser.error("name an OUTFILE or --self-check")
    cases, covered = ordinary_cases(RANDOM_CASES)
    cases += special_cases()
    possible = possible_pairs()
    count = sum(len(gradient_names(case)) for case in cases)
    print(f"oracle: {len(cases)} cases, {len(covered & possible)} option pairs covered of "
          f"{len(possible)} possible, {count} gradients")
    if arguments.self_check:
        return 1 if self_check(cases, covered) else 0
    write(arguments.outfile, cases)
    return 0


if __name__ == "__main__":
    sys.exit(main())
