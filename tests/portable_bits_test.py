# SPDX-License-Identifier: Apache-2.0
"""Tests that the library has no code whose bits depend on the CPU's maker or on the C library.

usage: portable_bits_test.py LIBRARY.a COMPILER

The library may not have the estimates of SSE and AVX, whose bits each maker chooses (those of
AVX-512, such as vrcp14ps, are defined to the bit), nor transcendental instructions of the x87. It
may not call functions of libm that C libraries round differently, or in several versions of which
they choose one by the CPU, nor their forms for vectors (libmvec) and for finite numbers; `fma` and
`sqrt` are exact everywhere. The self test compiles objects with such an instruction or call, which
must be found.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ESTIMATES = re.compile(r"\tv?r(?:cp|sqrt)[ps]s\b")
X87 = re.compile(r"\tf(?:sin|cos|sincos|ptan|patan|2xm1|yl2x|yl2xp1)\b")
# A lower-case letter, which names the vectors, follows _ZGV in libmvec, but not in guard variables.
FUNCTIONS = re.compile(
    r"\bU (_ZGV[a-z]\w+|(?:__)?"
    r"(?:c?(?:exp|log|pow|sin|cos|tan|sinh|cosh|tanh|asin|acos|atan|asinh|acosh|atanh)"
    r"|exp2|exp10|expm1|log2|log10|log1p|sincos|atan2|hypot|cbrt|erfc?|[lt]gamma)[fl]?"
    r"(?:_r)?(?:_finite)?)$"
)


def lines(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def found(library):
    """Yields (function or object, instruction or symbol) for all that the library may not have."""
    of = count = 0
    for line in lines("objdump", "--disassemble", "--no-show-raw-insn", library):
        if line.endswith(">:"):
            of = line.split("<", 1)[1][:-2]
        elif "\t" in line:
            count += 1
            if ESTIMATES.search(line) or X87.search(line):
                yield of, line.split("\t", 1)[1].strip()
    if count == 0:
        sys.exit(f"{library}: no instructions")
    for line in lines("nm", "--print-file-name", "--undefined-only", library):
        if FUNCTIONS.search(line):
            yield tuple(part.strip() for part in line.rsplit(":", 1))


def self_test(compiler):
    wrong = {
        "an estimate": "#include <immintrin.h>\n__m128 f(__m128 x) { return _mm_rcp_ps(x); }",
        "the estimate of a root": "#include <immintrin.h>\n__m128 f(__m128 x) { return _mm_rsqrt_ss(x); }",
        "an x87 instruction": 'double f(double x) { asm("fsin" : "+t"(x)); return x; }',
        "libm": "#include <cmath>\nfloat f(float x) { return std::exp(x); }",
        **{name: f'extern "C" double {name}(double, int*); '
                 f"double f(double x, int* y) {{ return {name}(x, y); }}"
           for name in ("lgamma_r", "_ZGVbN2v_exp", "__log_finite", "__lgammaf_r_finite")},
    }
    right = "#include <cmath>\ndouble f(double x) { return std::fma(x, x, 1) / std::sqrt(x); }"
    with tempfile.TemporaryDirectory() as folder:
        source, built = Path(folder) / "one.cc", str(Path(folder) / "one.o")
        for name, text in (*wrong.items(), ("nothing", right)):
            source.write_text(text, encoding="utf-8")
            subprocess.run([compiler, "-O1", "-c", str(source), "-o", built], check=True)
            if bool(list(found(built))) != (name in wrong):
                sys.exit(f"self test: {name} was {'not ' if name in wrong else ''}found")


def main():
    library, compiler = sys.argv[1:]
    self_test(compiler)
    faults = list(found(library))
    for of, what in faults:
        print(f"{of}: {what}")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
