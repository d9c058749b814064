# SPDX-License-Identifier: Apache-2.0
# Dependencies of qkv_app and the program qkv. If one is missing, QKV_APP=ON is an error and
# QKV_APP=AUTO becomes OFF.

set(app_missing "")
macro(qkv_app_needs found debian_package)
  if(NOT ${found})
    list(APPEND app_missing ${debian_package})
  endif()
endmacro()

find_package(CLI11 QUIET)
qkv_app_needs(CLI11_FOUND libcli11-dev)
find_package(fmt QUIET)
qkv_app_needs(fmt_FOUND libfmt-dev)
find_package(nlohmann_json QUIET)
qkv_app_needs(nlohmann_json_FOUND nlohmann-json3-dev)
# pkg-config finds libzip, since its CMake files in Debian 12 demand programs of packages on which
# libzip-dev does not depend.
find_package(PkgConfig QUIET)
qkv_app_needs(PKG_CONFIG_FOUND pkg-config)
if(PKG_CONFIG_FOUND)
  pkg_check_modules(libzip QUIET IMPORTED_TARGET libzip)
  pkg_check_modules(utf8proc QUIET IMPORTED_TARGET libutf8proc)
  pkg_check_modules(zlib QUIET IMPORTED_TARGET zlib)
  pkg_check_modules(sentencepiece QUIET IMPORTED_TARGET sentencepiece)
endif()
qkv_app_needs(libzip_FOUND libzip-dev)
qkv_app_needs(zlib_FOUND zlib1g-dev)
qkv_app_needs(utf8proc_FOUND libutf8proc-dev)
qkv_app_needs(sentencepiece_FOUND libsentencepiece-dev)

if(app_missing)
  list(JOIN app_missing " " app_missing)
  if(NOT QKV_APP STREQUAL "AUTO")
    message(FATAL_ERROR "qkv_app and the program qkv need more than is here. Debian's packages: "
      "${app_missing}. QKV_APP=OFF builds the library alone.")
  endif()
  message(WARNING "Built without the program qkv. Debian's packages that it needs: ${app_missing}")
  set(QKV_APP OFF)
endif()
