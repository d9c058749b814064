# SPDX-License-Identifier: Apache-2.0
"""The library has nothing in it whose bits depend on the maker of the CPU or on the C library.

usage: portable_bits_test.py LIBRARY.a COMPILER

Instructions: the estimates of SSE and AVX, whose bits each maker chooses, and transcendental ones of
the x87. Those of AVX-512 (vrcp14ps) are defined to the bit. Functions: those of libm that C libraries
round differently, and in several versions, chosen by the CPU. `fma` and `sqrt` are exact everywhere.
Objects with both, made here, must be found.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ESTIMATES = re.compile(r"\tv?r(?:cp|sqrt)[ps]s\b")
X87 = re.compile(r"\tf(?:sin|cos|sincos|ptan|patan|2xm1|yl2x|yl2xp1)\b")
FUNCTIONS = re.compile(
    r"\bU (c?(?:exp|log|pow|sin|cos|tan|sinh|cosh|tanh|asin|acos|atan|asinh|acosh|atanh)"
    r"|exp2|exp10|expm1|log2|log10|log1p|sincos|atan2|hypot|cbrt|erfc?|[lt]gamma)[fl]?$"
)


def lines(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def found(library):
    """What the library has that it must not have: (function or object, what)."""
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
