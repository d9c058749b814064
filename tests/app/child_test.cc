// SPDX-License-Identifier: Apache-2.0
#include "picture/child.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <qkv/app/picture.h>
#include <qkv/error.h>

#include "tests/app/files.h"
#include "tests/app/pictures.h"

namespace qkv::app {
namespace {

using picture::ChildResult;
using picture::run_child;
using test::complaint;

// PATH while the object lives.
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

// Gone, or killed and not yet collected by whoever inherited it.
bool is_dead(pid_t number) {
  for (int n = 0; n < 200; ++n) {
    const std::string state = test::read("/proc/" + std::to_string(number) + "/stat");
    if (state.empty() || state.find(") Z ") != state.npos) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

int open_descriptors() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    count += entry.exists() ? 1 : 0;
  }
  return count;
}

TEST(Child, TalksBothWaysWhateverTheSizes) {
  const std::string input(3'000'000, 'x');  // many times what pipes hold
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

TEST(Child, OutlivesOneThatDoesNotRead) {
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

// Whatever the child does: nothing, no more reading, or no more talking either.
TEST(Child, IsStoppedWithAllThatItStarted) {
  const test::Directory directory;
  const std::string file = directory / "pid";
  for (const std::string closed : {"", "exec <&-; ", "exec <&- >&- 2>&-; "}) {
    SCOPED_TRACE(closed);
    const int before = open_descriptors();
    std::atomic<bool> stop{false};
    std::thread other([&] {
      // Until the child's own child has said its number.
      for (int n = 0; n < 500 && !test::read(file).ends_with('\n'); ++n) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      stop = true;
    });
    const std::string script = closed + "sleep 30 & echo $! >'" + file + "'; wait";
    const auto start = std::chrono::steady_clock::now();
    EXPECT_THROW(run_child("sh", {"-c", script}, std::string(3'000'000, 'x'), &stop), Cancelled);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
    other.join();
    EXPECT_EQ(open_descriptors(), before);
    EXPECT_TRUE(no_child_is_left());
    EXPECT_TRUE(is_dead(std::stoi(test::read(file))));
    std::filesystem::remove(file);
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

TEST(Png, IsOne) {
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
