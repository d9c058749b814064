# SPDX-License-Identifier: Apache-2.0

# Toolchain file: Debian's cross compiler for AArch64; what is built runs under qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
# The C library of the cross compiler goes with its loader; one of the machine's own for arm64 may not.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu
    -E LD_LIBRARY_PATH=/usr/aarch64-linux-gnu/lib)
# No notes that GCC 10.1 changed how a pair of floats is passed.
set(CMAKE_CXX_FLAGS_INIT -Wno-psabi)
