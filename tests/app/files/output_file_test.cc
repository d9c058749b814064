// SPDX-License-Identifier: Apache-2.0
// Tests that files are written atomically, and that "-" is standard input and output.
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <qkv/app/array_file.h>

#include "files/text_file.h"
#include "tests/app/files/arrays.h"
#include "tests/app/files/files.h"

namespace qkv::app {
namespace {

using test::complaint;
using test::counted;
using test::Directory;
using test::expect_all;
using test::expect_same;
using test::some_arrays;
using test::views;
using Texts = std::vector<std::string>;

TEST(OutputFile, NoFileIsLeftIfItCannotBeWritten) {
  const Directory directory;
  const Tensor x = counted(DType::kFloat32, {1});
  const std::vector<NamedView> arrays{{"x", x.view()}};
  directory.write("file", "");
  for (const char* path : {"none/a", "file/a", "."}) {
    EXPECT_THROW(write_npy(directory / path, x.view()), OutputError) << path;
    EXPECT_THROW(write_npz(directory / path, arrays), OutputError) << path;
  }
  EXPECT_EQ(complaint<OutputError>([&] { write_npy(directory / "none/a", x.view()); }),
            directory / "none/a" + ": cannot be written: No such file or directory");
  EXPECT_THROW(write_npy(directory / std::string("file\0x", 6), x.view()), OutputError);
  EXPECT_EQ(complaint<OutputError>([&] { write_npy("", x.view()); }),
            "\"\": cannot be written: its name is empty");
  EXPECT_EQ(directory.names(), Texts{"file"});
}

// Writing fails half-way at the size limit, as on a full disk.
TEST(OutputFile, AFailureHalfWayLeavesTheOldFile) {
  const Directory directory;
  const Tensor x = counted(DType::kFloat32, {100000});
  directory.write("a", "old");
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit low{4096, old.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  const std::string npy_text =
      complaint<OutputError>([&] { write_npy(directory / "a", x.view()); });
  const std::string npz_text = complaint<OutputError>([&] {
    write_npz(directory / "a", std::vector<NamedView>{{"x", x.view()}});
  });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(npy_text.find("File too large"), std::string::npos) << npy_text;
  EXPECT_NE(npz_text.find("File too large"), std::string::npos) << npz_text;
  EXPECT_EQ(test::read(directory / "a"), "old");
  EXPECT_EQ(directory.names(), Texts{"a"});
}

TEST(OutputFile, IsWrittenBlockByBlock) {
  const Directory directory;
  int block = 0;
  write_blocks(directory / "a", [&]() -> std::string_view {
    EXPECT_FALSE(std::filesystem::exists(directory / "a"));
    return ++block < 3 ? "ab" : "";
  });
  EXPECT_EQ(test::read(directory / "a"), "abab");
  EXPECT_THROW(write_blocks(directory / "a",
                            [&]() -> std::string_view {
                              if (++block > 4) throw std::domain_error("no more");
                              return "x";
                            }),
               std::domain_error);
  EXPECT_EQ(test::read(directory / "a"), "abab");
  EXPECT_EQ(directory.names(), Texts{"a"});
}

TEST(OutputFile, ReplacesAFileAndFollowsALink) {
  const Directory directory;
  const Tensor x = counted(DType::kFloat32, {1});
  directory.write("a", "old");
  std::filesystem::create_symlink("a", directory / "link");
  write_npy(directory / "link", x.view());
  EXPECT_TRUE(std::filesystem::is_symlink(directory / "link"));
  EXPECT_FALSE(std::filesystem::is_symlink(directory / "a"));
  expect_same(read_npy(directory / "a"), x);
  EXPECT_EQ(directory.names(), (Texts{"a", "link"}));
}

// The temporary file's name, in the same folder, begins with as much of the output's name as the
// limit of 255 bytes (NAME_MAX) allows.
TEST(OutputFile, MayHaveTheLongestName) {
  const Directory directory;
  const std::string name(255, 'b');
  write_npy(directory / name, counted(DType::kFloat32, {1}).view());
  EXPECT_EQ(directory.names(), (Texts{name}));
}

// A new file has mode 0666 without the bits of the umask.
TEST(OutputFile, HasAllPermissionsThatTheUmaskLeaves) {
  const Directory directory;
  const mode_t old = ::umask(022);
  const Tensor x = counted(DType::kFloat32, {1});
  write_npy(directory / "a.npy", x.view());
  write_npz(directory / "a.npz", std::vector<NamedView>{{"x", x.view()}});
  ::umask(old);
  for (const char* name : {"a.npy", "a.npz"}) {
    struct stat status {};
    ASSERT_EQ(::stat((directory / name).c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0644U) << name;
  }
}

// A file keeps its permissions when it is replaced, also by write_npz(), whose zip library may
// replace the temporary file.
TEST(OutputFile, KeepsThePermissionsOfTheFileItReplaces) {
  const Directory directory;
  const mode_t old = ::umask(022);
  const Tensor x = counted(DType::kFloat32, {1});
  for (const mode_t mode : {0600U, 0666U, 0444U, 0750U}) {
    for (const char* name : {"a.npy", "a.npz"}) {
      ASSERT_EQ(::chmod(directory.write(name, "old").c_str(), mode), 0);
    }
    write_npy(directory / "a.npy", x.view());
    write_npz(directory / "a.npz", std::vector<NamedView>{{"x", x.view()}});
    for (const char* name : {"a.npy", "a.npz"}) {
      struct stat status {};
      ASSERT_EQ(::stat((directory / name).c_str(), &status), 0);
      EXPECT_EQ(status.st_mode & 07777, mode) << name;
      std::filesystem::remove(directory / name);
    }
  }
  ::umask(old);
}

// Redirects a standard stream of the process to `fd`, which it closes, for the object's lifetime.
class Redirected {
 public:
  Redirected(int stream, int fd) : stream_(stream), old_(::dup(stream)) {
    std::fflush(stdout);
    ::dup2(fd, stream);
    ::close(fd);
  }
  ~Redirected() {
    ::dup2(old_, stream_);
    ::close(old_);
  }
  Redirected(const Redirected&) = delete;
  Redirected& operator=(const Redirected&) = delete;

 private:
  int stream_;
  int old_;
};

constexpr ArrayFormat kAll[] = {ArrayFormat::kNpy, ArrayFormat::kNpz, ArrayFormat::kSafetensors};

std::vector<NamedArray> arrays_for(ArrayFormat format) {
  std::vector<NamedArray> arrays = some_arrays();
  if (format != ArrayFormat::kNpy) return arrays;
  arrays.resize(1);
  arrays[0].name = "";
  return arrays;
}

TEST(StandardStreams, EveryFormatGoesToStandardOutput) {
  const Directory directory;
  for (const ArrayFormat format : kAll) {
    const auto arrays = arrays_for(format);
    write_arrays(directory / "a", format, views(arrays));
    {
      const Redirected out(STDOUT_FILENO,
                           ::open((directory / "b").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600));
      write_arrays("-", format, views(arrays));
    }
    EXPECT_EQ(test::read(directory / "a"), test::read(directory / "b"));
  }
}

TEST(StandardStreams, EveryFormatIsReadFromAFileOrAPipe) {
  const Directory directory;
  for (const ArrayFormat format : kAll) {
    const auto arrays = arrays_for(format);
    write_arrays(directory / "a", format, views(arrays));
    expect_all(read_arrays(directory / "a"), arrays);
    {
      const Redirected in(STDIN_FILENO, ::open((directory / "a").c_str(), O_RDONLY));
      expect_all(read_arrays("-"), arrays);
    }
    const std::string bytes = test::read(directory / "a");
    ASSERT_LT(bytes.size(), 65536U) << "must fit into a pipe";
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    ASSERT_EQ(::write(pipe[1], bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    ::close(pipe[1]);
    const Redirected in(STDIN_FILENO, pipe[0]);
    expect_all(read_arrays("-"), arrays);
  }
}

// Bytes of standard input before its current position are not part of the array file.
TEST(StandardStreams, ReadingBeginsAtTheCurrentPosition) {
  const Directory directory;
  for (const ArrayFormat format : kAll) {
    const auto arrays = arrays_for(format);
    write_arrays(directory / "a", format, views(arrays));
    const int fd =
        ::open(directory.write("b", "before" + test::read(directory / "a")).c_str(), O_RDONLY);
    ASSERT_EQ(::lseek(fd, 6, SEEK_SET), 6);
    const Redirected in(STDIN_FILENO, fd);
    expect_all(read_arrays("-"), arrays);
  }
}

TEST(StandardStreams, AClosedPipeIsAnErrorOfItsOwn) {
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  ::close(pipe[0]);
  const auto handler = std::signal(SIGPIPE, SIG_IGN);
  const Redirected out(STDOUT_FILENO, pipe[1]);
  const std::vector<NamedArray> arrays = some_arrays();
  try {
    write_arrays("-", ArrayFormat::kNpz, views(arrays));
    ADD_FAILURE() << "no exception";
  } catch (const OutputError& error) {
    EXPECT_TRUE(error.is_closed_pipe());
    EXPECT_EQ(error.file(), "<stdout>");
  }
  std::signal(SIGPIPE, handler);
}

TEST(ReadArrays, AMessageIsOneLine) {
  EXPECT_EQ(complaint<InputError>([&] { read_arrays("no\nfile\x7f"); }),
            "no\\x0afile\\x7f: No such file or directory");
  EXPECT_EQ(complaint<OutputError>([&] { write_text("no\nfolder/x", ""); }),
            "no\\x0afolder/x: cannot be written: No such file or directory");
}

// An endless stream that is no array must be rejected without being read to the end.
TEST(ReadArrays, OtherStreamsAreNotReadToTheEnd) {
  EXPECT_THROW(read_arrays("/dev/zero"), InputError);
  EXPECT_THROW(read_npz("/dev/zero"), InputError);
  EXPECT_THROW(read_npy("/dev/zero"), InputError);
  EXPECT_THROW(read_safetensors("/dev/zero"), InputError);
}

TEST(ReadArrays, ErrorsNameTheFormats) {
  const Directory directory;
  EXPECT_EQ(complaint<InputError>([&] { read_arrays(directory.write("a", "GIF89a...")); }),
            directory / "a" +
                ": byte 0: expected an array file (.npy, .npz, .safetensors), got \"GIF89a..\"");
  EXPECT_EQ(complaint<InputError>([&] { read_arrays(directory.write("a", "")); }),
            directory / "a" +
                ": byte 0: expected an array file (.npy, .npz, .safetensors), got an empty file");
  EXPECT_EQ(array_format("a.safetensors"), ArrayFormat::kSafetensors);
  EXPECT_EQ(array_format("a.txt"), std::nullopt);
}

}  // namespace
}  // namespace qkv::app
