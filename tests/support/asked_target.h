// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_SUPPORT_ASKED_TARGET_H_
#define TESTS_SUPPORT_ASKED_TARGET_H_

#include <string>

namespace qkv::test {

// Link asked_target.cc to a program whose tests run again for other CPU targets, each named by
// QKV_TARGET in the environment: the tests are skipped if this CPU lacks the target.

// Returns the requested target, QKV_TARGET, or "" if it is not set.
std::string asked_target();
// Returns whether QKV_TARGET names a target of any CPU, whether or not this one has it.
bool asks_for_known_target();

}  // namespace qkv::test

#endif  // TESTS_SUPPORT_ASKED_TARGET_H_
