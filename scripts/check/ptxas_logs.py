#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what ptxas says about the CUDA kernels of a build: their registers, and spills to memory.

usage: ptxas_logs.py FOLDER       check a build's logs, FOLDER/*.fatbin.log
       ptxas_logs.py --self-test  plant wrong logs and find each
The last line counts the kernels, once for each architecture. Exit 1 for a kernel with more spills
than it may have or more than 255 registers, for one that ptxas says nothing about, and if there are
no kernels.
"""

import pathlib
import re
import sys

MOST_REGISTERS = 255
# Kernels that may spill registers to memory, and how many bytes of spills they may store and load
# together. Shapes without spills were slower: with 32 keys in a tile, qkv_forward_bfloat16_128 had
# 316 TFLOP/s instead of 334 on an H200.
MAY_SPILL = {
    r"qkv_forward_\w+_128": 408,
    r"qkv_forward_\w+_64_every": 8,
    r"qkv_forward_\w+_256_every": 56,
    # Gradient kernels have not yet run on a GPU. For sm_90a only those of 128 channels spill, at
    # most 636 bytes.
    r"qkv_key_gradients_\w+_64": 152,
    r"qkv_key_gradients_\w+_128": 896,
    r"qkv_(key|query)_gradients_\w+_256": 48,
}
ENTRY = re.compile(r"Compiling entry function '([^']+)' for '(sm_\w+)'")
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")


def kernels_of(text):
    """(name, architecture, bytes of spills, registers) of each kernel; None: ptxas does not say."""
    entries = list(ENTRY.finditer(text))
    ends = [entry.start() for entry in entries[1:]] + [len(text)]
    for entry, end in zip(entries, ends):
        said = text[entry.end():end]
        spills, registers = SPILLS.search(said), REGISTERS.search(said)
        yield (*entry.groups(), spills and int(spills[1]) + int(spills[2]), registers and int(registers[1]))


def fault_of(kernel, spills, registers):
    """The fault of a kernel as text, or None."""
    if spills is None or registers is None:
        return "ptxas does not say what it uses"
    allowed = max((most for name, most in MAY_SPILL.items() if re.fullmatch(name, kernel)), default=0)
    if spills > allowed:
        return f"{spills} bytes of spills"
    if registers > MOST_REGISTERS:
        return f"{registers} registers"
    return None


def check(logs):
    """(kernels, faults, the most registers) of {name: text}."""
    count, faults, most = 0, [], 0
    for name, text in sorted(logs.items()):
        for kernel, architecture, spills, registers in kernels_of(text):
            count += 1
            most = max(most, registers or 0)
            fault = fault_of(kernel, spills, registers)
            if fault:
                faults.append(f"{name}: {kernel} for {architecture}: {fault}")
        if not ENTRY.search(text):
            faults.append(f"{name}: no kernel")
    return count, faults, most


LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'forward' for 'sm_80'
ptxas info    : Function properties for forward
    {frame} bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads
ptxas info    : Used {registers} registers, used 1 barriers, 360 bytes cmem[0]
"""
WELL = LOG.format(frame=16, stores=0, loads=0, registers=255)
PLANTED = [
    LOG.format(frame=0, stores=8, loads=0, registers=168),
    LOG.format(frame=0, stores=0, loads=4, registers=168),
    LOG.format(frame=0, stores=0, loads=0, registers=256),
    "".join(WELL.splitlines(keepends=True)[:-1]),
    "".join(WELL.splitlines(keepends=True)[:2]) + WELL,
    "",
    LOG.replace("forward", "qkv_forward_float16_128").format(frame=0, stores=200, loads=209, registers=255),
]


def self_test():
    found = sum(len(check({"a": WELL, "b": text})[1]) == 1 for text in PLANTED)
    blamed = check({"a": WELL + WELL.replace("sm_80", "sm_90a")})
    print(f"self-test: {found} of {len(PLANTED)} planted logs found")
    return 0 if found == len(PLANTED) and blamed == (2, [], 255) else 1


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    logs = {file.name: file.read_text(encoding="utf-8") for file in pathlib.Path(sys.argv[1]).glob("*.fatbin.log")}
    count, faults, most = check(logs)
    for fault in faults:
        print(fault)
    print(f"{count} kernels of {len(logs)} images, at most {most} registers, {len(faults)} faults")
    return 1 if faults or not count else 0


if __name__ == "__main__":
    sys.exit(main())
