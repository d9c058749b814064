// SPDX-License-Identifier: Apache-2.0
#include "console.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <system_error>

#include <fmt/format.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): POSIX, for sigaction
#include <unistd.h>

#include <qkv/app/file_error.h>

namespace {

std::atomic<bool> stop{false};
std::atomic<int> signal_number{0};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free,
              "signal handlers may touch nothing else");

extern "C" void on_signal(int number) {
  signal_number.store(number);
  stop.store(true);
}

}  // namespace

void print(std::string_view text) {
  while (!text.empty()) {
    const ssize_t put = ::write(STDOUT_FILENO, text.data(), text.size());
    if (put >= 0) {
      text.remove_prefix(static_cast<std::size_t>(put));
    } else if (errno == EPIPE) {
      throw ClosedPipe{};
    } else if (errno != EINTR) {
      throw qkv::app::OutputError("<stdout>", std::generic_category().message(errno));
    }
  }
}

void warn(const Common& common, std::string_view text) {
  if (!common.quiet) std::fputs(fmt::format("qkv: {}\n", text).c_str(), stderr);
}

bool colour_wanted() {
  const char* refused = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return ::isatty(STDOUT_FILENO) == 1 && (refused == nullptr || *refused == '\0') &&
         terminal != nullptr && std::string_view(terminal) != "dumb";
}

void catch_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESETHAND;  // and no SA_RESTART: a read that waits must return
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
}

const std::atomic<bool>& stop_flag() { return stop; }
int caught_signal() { return signal_number.load(); }
