// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_SUPPORT_STOPS_H_
#define QKV_TESTS_SUPPORT_STOPS_H_

#include <atomic>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include <qkv/context.h>
#include <qkv/error.h>

#include "tests/support/touched.h"

namespace qkv::test {

// Returns the text of the Cancelled that call(context) throws, or "" if it returns. Other
// exceptions propagate.
template <class Call>
std::string cancelled_by(const std::atomic<bool>& stop, const Call& call, Context context = {}) {
  context.set_stop_flag(&stop);
  try {
    call(context);
  } catch (const Cancelled& cancelled) {
    return cancelled.what();
  }
  return "";
}

// Returns the text of the Cancelled if the flag is set in the middle of the call: at its first
// access to the second half of an array that it reads or writes. From then on it may access at most
// `pages` pages of that half, which must have many more, or the call would end by itself.
template <class Call>
std::string cancelled_midway(TouchedArray& array, Index pages, const Call& call,
                             Context context = {}) {
  EXPECT_GT(array.watched(), 3 * pages);
  std::atomic<bool> stop{false};
  std::string text;
  {
    const TouchedArray::Watch watch(array, stop);
    text = cancelled_by(stop, call, std::move(context));
  }
  EXPECT_TRUE(stop) << "nothing was touched";
  EXPECT_LE(array.touched(), pages) << "of " << array.watched() << " that were watched";
  return text;
}

}  // namespace qkv::test

#endif  // QKV_TESTS_SUPPORT_STOPS_H_
