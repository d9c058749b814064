# SPDX-License-Identifier: Apache-2.0

# Toolchain file for Debian's cross compiler for AArch64, whose programs run under qemu-user.
# QKV_SYSROOT names a directory with Debian's libraries for arm64 (scripts/wheel/sysroot.sh), which
# qkv_app and the Python package link.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
# -Wno-psabi silences notes that GCC 10.1 changed how a pair of floats is passed.
set(CMAKE_CXX_FLAGS_INIT -Wno-psabi)
# LD_LIBRARY_PATH: the cross compiler's loader needs the C library beside it. An arm64 C library
# that is installed on this machine may have another version.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu
    -E LD_LIBRARY_PATH=/usr/aarch64-linux-gnu/lib)

if(QKV_SYSROOT)
  list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES QKV_SYSROOT)
  set(CMAKE_SYSROOT ${QKV_SYSROOT})
  set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
  set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L ${QKV_SYSROOT})
  set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
  set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
  set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
  # BOTH: the packages of nanobind and of an installed qkv are outside the sysroot.
  set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE BOTH)
  set(ENV{PKG_CONFIG_SYSROOT_DIR} ${QKV_SYSROOT})
  set(ENV{PKG_CONFIG_LIBDIR}
      ${QKV_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${QKV_SYSROOT}/usr/share/pkgconfig)
endif()
