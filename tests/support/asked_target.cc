// SPDX-License-Identifier: Apache-2.0
#include "tests/support/asked_target.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string_view>

#include <gtest/gtest.h>

#include <qkv/target.h>

#include "kernels/target.h"

namespace qkv::test {
namespace {

bool has(const std::string& target) {
  const auto targets = cpu_targets();
  return std::find(targets.begin(), targets.end(), target) != targets.end();
}

class SkipWhatIsLacking : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo&) override {
    if (asks_for_known_target() && !has(asked_target())) {
      GTEST_SKIP() << "QKV_TARGET is " << asked_target() << ", which this CPU does not have";
    }
  }
};

// gtest_main runs listeners that were registered before main.
[[maybe_unused]] const bool kRegistered = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new SkipWhatIsLacking);
  return true;
}();

}  // namespace

std::string asked_target() {
  const char* value = std::getenv("QKV_TARGET");
  return value == nullptr ? "" : value;
}

bool asks_for_known_target() {
#define QKV_NAME(with, enumerator, name, highway) name,
  constexpr std::string_view kNames[] = {QKV_FOR_EACH_TARGET(QKV_NAME, )
                                             QKV_FOR_EACH_ABSENT_TARGET(QKV_NAME, ) "reference"};
#undef QKV_NAME
  return std::find(std::begin(kNames), std::end(kNames), asked_target()) != std::end(kNames);
}

}  // namespace qkv::test
