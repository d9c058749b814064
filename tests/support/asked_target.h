// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_SUPPORT_ASKED_TARGET_H_
#define TESTS_SUPPORT_ASKED_TARGET_H_

#include <string>

namespace qkv::test {

// For programs whose tests run once for each CPU target, with QKV_TARGET in the environment: each
// test is skipped when this CPU lacks the target.

// QKV_TARGET, "" when it is not set.
std::string asked_target();
// Whether it names a target at all.
bool asks_for_known_target();

}  // namespace qkv::test

#endif  // TESTS_SUPPORT_ASKED_TARGET_H_
