// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_SUPPORT_SCALE_H_
#define QKV_TESTS_SUPPORT_SCALE_H_

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

// The scale of tests: how often they repeat random draws, and how large their largest sizes are.
// The environment variable QKV_TEST_SCALE is a percentage; without it everything runs. `make test`
// runs 10 percent, `make check` all.
namespace qkv::test {

// Returns the scale as a percentage from 1 to 100.
inline int test_scale() {
  static const int percent = [] {
    const char* value = std::getenv("QKV_TEST_SCALE");
    if (value == nullptr) return 100;
    const std::string_view text = value;
    int number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size() || number < 1 || number > 100) {
      throw std::invalid_argument("QKV_TEST_SCALE must be a whole number from 1 to 100, not '" +
                                  std::string(text) + "'");
    }
    return number;
  }();
  return percent;
}

// True if everything runs, down to the last combination.
inline bool is_thorough() { return test_scale() == 100; }

// True if long combinations (types and paths that run the same loops) are skipped, as in step
// sanitize of `make check`.
inline bool is_brief() { return test_scale() < 5; }

// Returns how many of n repetitions to run at this scale, but at least `least`.
template <class Number>
Number at_scale(Number n, Number least = 1) {
  return std::max<Number>(least, static_cast<Number>(n * test_scale() / 100));
}

}  // namespace qkv::test

#endif  // QKV_TESTS_SUPPORT_SCALE_H_
