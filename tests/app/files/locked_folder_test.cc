// SPDX-License-Identifier: Apache-2.0
#include "files/locked_folder.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/app/files/files.h"

namespace qkv::app {
namespace {

using test::complaint;
using test::Directory;
using Texts = std::vector<std::string>;

TEST(LockedFolder, IsCreatedAndRemovedAgainIfItStaysEmpty) {
  const Directory directory;
  {
    const LockedFolder folder(directory / "run");
    EXPECT_EQ(directory.names(), Texts{"run"});
    EXPECT_EQ(folder.file("a"), directory / "run/a");
    EXPECT_FALSE(folder.holds("a"));
  }
  EXPECT_EQ(directory.names(), Texts{});
  {
    const LockedFolder folder(directory / "run");
    directory.write("run/b", "");
    directory.write("run/a", "");
    EXPECT_TRUE(folder.holds("a"));
    EXPECT_EQ(folder.names(), (Texts{"a", "b"}));
  }
  EXPECT_EQ(directory.names(), Texts{"run"});
}

TEST(LockedFolder, DoesNotRemoveAnEmptyFolderItDidNotCreate) {
  const Directory directory;
  std::filesystem::create_directory(directory / "run");
  { const LockedFolder folder(directory / "run"); }
  EXPECT_EQ(directory.names(), Texts{"run"});
}

TEST(LockedFolder, CannotBeLockedTwice) {
  const Directory directory;
  const std::string path = directory / "run";
  {
    const LockedFolder folder(path);
    EXPECT_EQ(complaint<OutputError>([&] { const LockedFolder second(path); }),
              path + ": cannot be written: another process writes to it");
    EXPECT_EQ(directory.names(), Texts{"run"});
  }
  const LockedFolder again(path);
}

// A process that has ended holds no lock, even if no destructor has run.
TEST(LockedFolder, TheLockEndsWithTheProcess) {
  const Directory directory;
  const std::string path = directory / "run";
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    new LockedFolder(path);
    ::_exit(0);
  }
  int status = 1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(directory.names(), Texts{"run"});
  const LockedFolder folder(path);
}

TEST(LockedFolder, CannotBeCreatedInAMissingFolderOrOverAFile) {
  const Directory directory;
  directory.write("file", "");
  const auto refused = [&](const std::string& path) {
    return complaint<OutputError>([&] { const LockedFolder folder(path); });
  };
  EXPECT_EQ(refused(directory / "file"),
            directory / "file" + ": cannot be written: Not a directory");
  EXPECT_EQ(refused(directory / "none/run"),
            directory / "none/run" + ": cannot be written: No such file or directory");
  EXPECT_EQ(directory.names(), Texts{"file"});
}

TEST(LockedFolder, RefusesToGiveThePathOfALink) {
  const Directory directory;
  const LockedFolder folder(directory / "run");
  directory.write("other", "kept");
  for (const char* target : {"../other", "../none"}) {
    std::filesystem::create_symlink(target, directory / "run/a.1-2.tmp");
    std::filesystem::create_symlink(target, directory / "run/a");
    EXPECT_TRUE(folder.holds("a"));
    EXPECT_EQ(complaint<OutputError>([&] { static_cast<void>(folder.file("a")); }),
              directory / "run/a" +
                  ": cannot be written: it is a symbolic link, which may lead out of the folder");
    EXPECT_EQ(folder.file("b"), directory / "run/b");
    folder.remove_leftovers("a");
    EXPECT_EQ(folder.names(), Texts{"a"});
    std::filesystem::remove(directory / "run/a");
  }
  EXPECT_EQ(directory.names(), (Texts{"other", "run"}));
}

TEST(LockedFolder, RemovesOnlyTheLeftoversOfOneFile) {
  const Directory directory;
  const LockedFolder folder(directory / "run");
  const Texts others{"a.1-.tmp",   "a.1-2.tmp2", "a.1-2-3.tmp", "a.12.tmp", "a.x-2.tmp",
                     "ab.1-2.tmp", "a",          "a..tmp",      "a.tmp",    "b.1-2.tmp"};
  for (const std::string& name : others) directory.write("run/" + name, "");
  directory.write("run/a.4711-0.tmp", "");
  directory.write("run/a.1-23.tmp", "");
  folder.remove_leftovers("a");
  Texts left = folder.names();
  EXPECT_TRUE(std::ranges::is_permutation(left, others));
}

}  // namespace
}  // namespace qkv::app
