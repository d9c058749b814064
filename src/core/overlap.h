// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CORE_OVERLAP_H_
#define QKV_CORE_OVERLAP_H_

#include <qkv/view.h>

// Tests whether strided arrays share memory. An exact decision is as hard as integer programming,
// so the tests return false only if disjointness is proved, as for slices, permutations and
// interleaved slices of one buffer. Absent views and arrays without elements share nothing.
namespace qkv::core {

// True if a byte may belong to elements of both arrays.
bool may_overlap(const ConstView& a, const ConstView& b);

// True if two different indices of one array may refer to a common byte, for example with a stride
// of 0. Such an array cannot hold results.
bool self_overlaps(const ConstView& v);

}  // namespace qkv::core

#endif  // QKV_CORE_OVERLAP_H_
