// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_OVERLAP_H_
#define QKV_CORE_OVERLAP_H_

#include <qkv/view.h>

// Whether strided arrays share memory. An exact decision is as hard as integer programming; these
// return false only if it is proved, which covers slices, permutations and interleaved slices of
// one buffer. Absent views and arrays without elements share nothing.
namespace qkv::core {

// Whether a byte may belong to an element of both.
bool may_overlap(const ConstView& a, const ConstView& b);

// Whether two different indices of one array may refer to a common byte (a stride of 0, for
// example). Such an array cannot hold results.
bool self_overlaps(const ConstView& v);

}  // namespace qkv::core

#endif  // QKV_CORE_OVERLAP_H_
