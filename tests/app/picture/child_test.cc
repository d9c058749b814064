// SPDX-License-Identifier: Apache-2.0
#include "picture/child.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <qkv/app/picture.h>
#include <qkv/error.h>

#include "tests/app/files/files.h"
#include "tests/app/picture/pictures.h"

namespace qkv::app {
namespace {

using picture::ChildResult;
using picture::run_child;
using test::complaint;

// Sets the variable PATH for the object's lifetime.
class Path {
 public:
  explicit Path(const std::string& path) {
    if (const char* old = std::getenv("PATH")) old_ = old;
    ::setenv("PATH", path.c_str(), 1);
  }
  ~Path() { ::setenv("PATH", old_.c_str(), 1); }
  Path(const Path&) = delete;
  Path& operator=(const Path&) = delete;

 private:
  std::string old_;
};

bool no_child_is_left() { return ::waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD; }

// A pipe that children do not inherit; they may open its ends by name.
class Pipe {
 public:
  Pipe() { EXPECT_EQ(::pipe2(ends_.data(), O_CLOEXEC), 0); }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  std::string name(std::size_t end) const {
    return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(ends_[end]);
  }
  void close_end(std::size_t end) {
    if (ends_[end] >= 0) ::close(std::exchange(ends_[end], -1));
  }
  void say(char letter) const { EXPECT_EQ(::write(ends_[1], &letter, 1), 1); }
  // Waits for a letter; "" if no writer is left.
  std::string hear() const {
    char letter = 0;
    return ::read(ends_[0], &letter, 1) == 1 ? std::string(1, letter) : "";
  }

 private:
  std::array<int, 2> ends_{};
};

// Waits until this process's thread with the id `thread` sleeps.
void wait_until_asleep(pid_t thread) {
  const std::string file = "/proc/self/task/" + std::to_string(thread) + "/stat";
  while (test::read(file).find(") S ") == std::string::npos) std::this_thread::yield();
}

int open_descriptors() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    count += entry.exists() ? 1 : 0;
  }
  return count;
}

TEST(Child, TalksBothWaysWhateverTheSizes) {
  const std::string input(3'000'000, 'x');  // many times the capacity of pipes
  const int before = open_descriptors();
  const ChildResult result = run_child("cat", {}, input);
  EXPECT_TRUE(result.found);
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.output, input);
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_TRUE(no_child_is_left());
}

TEST(Child, ReadsErrorsWhileItWrites) {
  const std::string input(1'000'000, 'x');
  const ChildResult result =
      run_child("sh", {"-c", "head -c 500000 /dev/zero >&2; cat; exit 3"}, input);
  EXPECT_EQ(result.status, 3);
  EXPECT_EQ(result.output, input);
  EXPECT_EQ(result.errors.size(), 500'000U);
}

TEST(Child, MayIgnoreItsInputOrBeKilled) {
  const std::string input(3'000'000, 'x');
  const ChildResult result = run_child("sh", {"-c", "exec <&-; echo done"}, input);
  EXPECT_EQ(result.output, "done\n");
  EXPECT_EQ(run_child("sh", {"-c", "kill -9 $$"}, input).status, 128 + SIGKILL);
  EXPECT_TRUE(no_child_is_left());
}

TEST(Child, SaysThatThereIsNoSuchProgram) {
  const int before = open_descriptors();
  EXPECT_FALSE(run_child("qkv-no-such-program", {}, "").found);
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_TRUE(no_child_is_left());
}

// The child must be stopped whether it keeps its standard files open, closes its input, or closes
// its outputs as well. A grandchild that is not stopped would copy letters until the test ends.
TEST(Child, IsStoppedWithAllThatItStarted) {
  for (const std::string closed : {"", "exec <&-; ", "exec <&- >&- 2>&-; "}) {
    SCOPED_TRACE(closed);
    const int before = open_descriptors();
    {
      Pipe to_grandchild;
      Pipe from_grandchild;
      std::atomic<bool> stop{false};
      std::thread other([&, caller = ::gettid()] {
        to_grandchild.say('a');
        EXPECT_EQ(from_grandchild.hear(), "a");
        wait_until_asleep(caller);
        stop = true;
      });
      const std::string script = closed + "cat <" + to_grandchild.name(0) + " >" +
                                 from_grandchild.name(1) + " 2>/dev/null & wait";
      EXPECT_THROW(run_child("sh", {"-c", script}, std::string(3'000'000, 'x'), &stop), Cancelled);
      other.join();
      EXPECT_TRUE(no_child_is_left());
      from_grandchild.close_end(1);
      to_grandchild.say('b');
      EXPECT_EQ(from_grandchild.hear(), "") << "the grandchild lives";
    }
    EXPECT_EQ(open_descriptors(), before);
  }
}

TEST(Png, NamesThePackageThatIsMissing) {
  const Path path("/nonexistent");
  EXPECT_EQ(complaint<NotAvailable>([] { draw_png(test::drawn_picture("one").picture); }),
            "PNG needs rsvg-convert: install the package librsvg2-bin");
}

TEST(Png, RepeatsWhatTheProgramComplainsOf) {
  const test::Directory directory;
  const std::string program =
      directory.write("rsvg-convert", "#!/bin/sh\necho 'too \033[31mlarge' >&2\nexit 1\n");
  ASSERT_EQ(::chmod(program.c_str(), 0755), 0);
  const Path path(directory / "");
  EXPECT_EQ(complaint<std::runtime_error>([] { draw_png(test::drawn_picture("large").picture); }),
            "rsvg-convert failed (1): too \uFFFD[31mlarge");
  EXPECT_TRUE(no_child_is_left());
}

TEST(Png, IsAPngAndTheSameEachTime) {
  std::string png;
  try {
    png = draw_png(test::drawn_picture("one").picture, 1);
  } catch (const NotAvailable& missing) {
    GTEST_SKIP() << missing.what();
  }
  EXPECT_TRUE(png.starts_with("\x89PNG\r\n\x1a\n"));
  EXPECT_EQ(png, draw_png(test::drawn_picture("one").picture, 1));
}

}  // namespace
}  // namespace qkv::app
