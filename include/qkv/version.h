// SPDX-License-Identifier: Apache-2.0
// The version of the library. CMake, pkg-config and the program read it from this header alone.
#ifndef QKV_VERSION_H_
#define QKV_VERSION_H_

#define QKV_VERSION_MAJOR 0
#define QKV_VERSION_MINOR 1
#define QKV_VERSION_PATCH 0

#define QKV_DETAIL_TEXT(x) #x
#define QKV_DETAIL_VERSION(major, minor, patch) \
  QKV_DETAIL_TEXT(major) "." QKV_DETAIL_TEXT(minor) "." QKV_DETAIL_TEXT(patch)

// The version as text, "MAJOR.MINOR.PATCH", and as a number that grows with it.
#define QKV_VERSION QKV_DETAIL_VERSION(QKV_VERSION_MAJOR, QKV_VERSION_MINOR, QKV_VERSION_PATCH)
#define QKV_VERSION_NUMBER (QKV_VERSION_MAJOR * 10000 + QKV_VERSION_MINOR * 100 + QKV_VERSION_PATCH)

#endif  // QKV_VERSION_H_
