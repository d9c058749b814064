// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_SUPPORT_STOPS_H_
#define QKV_TESTS_SUPPORT_STOPS_H_

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include <qkv/context.h>
#include <qkv/error.h>

namespace qkv::test {

// The text of the Cancelled that call(context) ends with; "" when it ends otherwise.
template <class Call>
std::string cancelled_by(const std::atomic<bool>& stop, const Call& call) {
  Context context;
  context.set_stop_flag(&stop);
  try {
    call(context);
  } catch (const Cancelled& cancelled) {
    return cancelled.what();
  }
  return "";
}

// The same with a flag that is set in the midst of the call: at half of the time it takes. Where
// the machine is busy the flag may come after its end: it is called again, some times.
template <class Call>
std::string cancelled_midway(const Call& call) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  std::string text = cancelled_by(false, call);
  const Clock::duration half = (Clock::now() - begin) / 2;
  for (int tries = 0; tries < 10 && text.empty(); ++tries) {
    std::atomic<bool> stop{false};
    std::thread setter([&] {
      std::this_thread::sleep_for(half);
      stop = true;
    });
    text = cancelled_by(stop, call);
    setter.join();
  }
  return text;
}

}  // namespace qkv::test

#endif  // QKV_TESTS_SUPPORT_STOPS_H_
