// SPDX-License-Identifier: Apache-2.0
#include "picture/child.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): POSIX, for kill
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <qkv/error.h>

#include "files/descriptor.h"

// The environment, which the child inherits. POSIX declares it in no header.
extern "C" char** environ;  // NOLINT(readability-redundant-declaration): <unistd.h> may have it

namespace qkv::app::picture {
namespace {

using files::Descriptor;

[[noreturn]] void refuse(int error, const char* call) {
  throw std::system_error(error, std::generic_category(), call);
}

// The longest wait between two polls of the stop flag: a signal between a poll and the wait would
// not end the wait.
constexpr int kPatience = 50;  // milliseconds

class Stop {
 public:
  explicit Stop(const std::atomic<bool>* flag) : flag_(flag) {}
  void check() const {
    if (flag_ != nullptr && flag_->load()) throw Cancelled("run_child");
  }
  void sleep(int milliseconds) const {
    check();
    ::poll(nullptr, 0, milliseconds);
  }

 private:
  const std::atomic<bool>* flag_;
};

// Moves a descriptor above 2. Descriptors 0, 1 and 2 become the child's ends: in a process that has
// closed them, a new descriptor may get one of these numbers, and would be overwritten.
Descriptor above_standard(int number) {
  const Descriptor given(number);
  Descriptor moved(::fcntl(number, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  if (!moved.is_open()) refuse(errno, "fcntl");
  return moved;
}

struct Ends {
  Descriptor ours;
  Descriptor childs;
};

// The ends of the child's input: a socket, not a pipe, since send() can suppress SIGPIPE and
// blocking.
Ends input_ends() {
  std::array<int, 2> pair{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) != 0) {
    refuse(errno, "socketpair");
  }
  Descriptor second(pair[1]);
  Ends ends{above_standard(pair[0]), above_standard(::fcntl(second.get(), F_DUPFD_CLOEXEC, 0))};
  return ends;
}

Ends output_ends() {
  std::array<int, 2> pair{};
  if (::pipe2(pair.data(), O_CLOEXEC) != 0) refuse(errno, "pipe2");
  Descriptor second(pair[1]);
  return {above_standard(pair[0]), above_standard(::fcntl(second.get(), F_DUPFD_CLOEXEC, 0))};
}

// The attributes of the child: its three files, the default SIGPIPE even if this process ignores
// it, and a process group of its own. The group is killed as a whole, since the program may be a
// script.
class Start {
 public:
  Start(const Ends& input, const Ends& output, const Ends& errors) {
    posix_spawn_file_actions_init(&files_);
    posix_spawnattr_init(&attributes_);
    posix_spawn_file_actions_adddup2(&files_, input.childs.get(), STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&files_, output.childs.get(), STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&files_, errors.childs.get(), STDERR_FILENO);
    sigset_t defaults;
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    posix_spawnattr_setsigdefault(&attributes_, &defaults);
    posix_spawnattr_setpgroup(&attributes_, 0);
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  }
  ~Start() {
    posix_spawn_file_actions_destroy(&files_);
    posix_spawnattr_destroy(&attributes_);
  }
  Start(const Start&) = delete;
  Start& operator=(const Start&) = delete;

  // Starts the program; returns 0 or an error number.
  int spawn(pid_t& process, char** arguments) const {
    return ::posix_spawnp(&process, arguments[0], &files_, &attributes_, arguments, environ);
  }

 private:
  posix_spawn_file_actions_t files_{};
  posix_spawnattr_t attributes_{};
};

// A running child. Unless wait() has seen its end, the destructor kills its group and waits.
class Process {
 public:
  explicit Process(pid_t number) : number_(number) {}
  ~Process() {
    if (number_ <= 0) return;
    ::kill(-number_, SIGKILL);  // the child's group
    int status = 0;
    while (::waitpid(number_, &status, 0) < 0 && errno == EINTR) {
    }
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Waits for the end, since the child may still run after closing its files. Returns its exit
  // code, or 128 + the number of the signal that ended it.
  int wait(const Stop& stop) {
    int status = 0;
    int pause = 1;  // milliseconds
    for (pid_t ended = 0; ended != number_; pause = std::min(2 * pause, kPatience)) {
      ended = ::waitpid(number_, &status, WNOHANG);
      // Where SIGCHLD is ignored, ended children leave no exit code; callers look at the output.
      if (ended < 0 && errno == ECHILD) {
        number_ = 0;
        return 0;
      }
      if (ended < 0 && errno != EINTR) refuse(errno, "waitpid");
      if (ended != number_) stop.sleep(pause);
    }
    number_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t number_;
};

// Sends as much as possible without blocking. Closes `to` when all is sent or the child stops
// reading.
void feed(Descriptor& to, std::string_view& input) {
  const ssize_t sent = ::send(to.get(), input.data(), input.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent >= 0) {
    input.remove_prefix(static_cast<std::size_t>(sent));
  } else if (errno == EPIPE || errno == ECONNRESET) {
    input = {};
  } else if (errno != EINTR && errno != EAGAIN) {
    refuse(errno, "send");
  }
  if (input.empty()) to.close();
}

// Reads the bytes that are available. Closes `from` at the end.
void drain(Descriptor& from, std::string& text) {
  std::array<char, 65536> buffer;  // NOLINT(cppcoreguidelines-pro-type-member-init)
  const ssize_t got = ::read(from.get(), buffer.data(), buffer.size());
  if (got > 0) {
    text.append(buffer.data(), static_cast<std::size_t>(got));
  } else if (got == 0) {
    from.close();
  } else if (errno != EINTR && errno != EAGAIN) {
    refuse(errno, "read");
  }
}

// Serves all three files at once, since waiting for one of them could deadlock.
void talk(Descriptor& to, Descriptor& output, Descriptor& errors, std::string_view input,
          const Stop& stop, ChildResult& result) {
  if (input.empty()) to.close();
  while (to.is_open() || output.is_open() || errors.is_open()) {
    // poll() ignores negative descriptors, the closed ones.
    std::array<pollfd, 3> waiting{
        {{to.get(), POLLOUT, 0}, {output.get(), POLLIN, 0}, {errors.get(), POLLIN, 0}}};
    stop.check();
    if (::poll(waiting.data(), waiting.size(), kPatience) < 0) {
      if (errno == EINTR) continue;
      refuse(errno, "poll");
    }
    if (waiting[0].revents != 0) feed(to, input);
    if (waiting[1].revents != 0) drain(output, result.output);
    if (waiting[2].revents != 0) drain(errors, result.errors);
  }
}

}  // namespace

ChildResult run_child(const std::string& program, const std::vector<std::string>& arguments,
                      std::string_view input, const std::atomic<bool>* stop) {
  const Stop stopped(stop);
  Ends to = input_ends();
  Ends output = output_ends();
  Ends errors = output_ends();
  std::vector<std::string> words{program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);

  ChildResult result;
  pid_t number = 0;
  const int error = Start(to, output, errors).spawn(number, pointers.data());
  if (error == ENOENT || error == EACCES || error == ENOTDIR) {
    result.found = false;
    return result;
  }
  if (error != 0) refuse(error, "posix_spawnp");
  Process process(number);
  to.childs.close();
  output.childs.close();
  errors.childs.close();
  talk(to.ours, output.ours, errors.ours, input, stopped, result);
  result.status = process.wait(stopped);
  return result;
}

}  // namespace qkv::app::picture
