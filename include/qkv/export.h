// SPDX-License-Identifier: Apache-2.0
// QKV_API marks the symbols that a shared library exports; everything else is hidden. If the
// library is shared, the build defines QKV_SHARED for the library and for its users.
#ifndef QKV_EXPORT_H_
#define QKV_EXPORT_H_

#if __cplusplus < 202002L
#error "qkv needs C++20: compile with -std=c++20 or newer"
#endif

#if defined(QKV_SHARED)
#define QKV_API __attribute__((visibility("default")))
#else
#define QKV_API
#endif

#endif  // QKV_EXPORT_H_
