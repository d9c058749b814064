// SPDX-License-Identifier: Apache-2.0
#include "cuda/driver.h"

#include <array>
#include <cstdint>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/error.h>

#include "tests/cuda/fake_calls.h"
#include "tests/support/errors.h"

namespace qkv::test {
namespace {

using cuda::CurrentContext;
using cuda::Driver;
using cuda::MemoryKind;

// The fake driver `devices`, and the list of calls that it gets.
class Fake : public testing::Test {
 protected:
  Fake() : driver_(path_of("devices").c_str(), 13000) { calls(); }

  static std::string calls() { return fake_calls("devices"); }

  Driver driver_;
  std::array<std::byte, 4> bytes_{};
  cuda::Image image_{"fake", bytes_};
};

std::string why(const std::string& library, int least_version = 13000) {
  const Driver driver(library.c_str(), least_version);
  EXPECT_TRUE(driver.devices().empty()) << library;
  return driver.why_no_device();
}

TEST_F(Fake, ListsItsDevices) {
  EXPECT_EQ(driver_.why_no_device(), "");
  ASSERT_EQ(driver_.devices().size(), 3U);
  const cuda::Device& first = driver_.devices()[0];
  EXPECT_EQ(first.number, 0);
  EXPECT_EQ(first.name, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(first.memory_bytes, std::size_t{81559} << 20U);
  EXPECT_EQ(first.major, 9);
  EXPECT_EQ(first.minor, 0);
  EXPECT_EQ(first.multiprocessors, 132);
  EXPECT_EQ(driver_.devices()[2].number, 2);
  EXPECT_EQ(driver_.devices()[2].name, "NVIDIA A100-SXM4-40GB");
}

TEST(Drivers, SayInOneLineWhyTheyHaveNoDevice) {
  EXPECT_EQ(why("libno_such_cuda.so.1"), "no CUDA driver on this machine (libno_such_cuda.so.1)");
  EXPECT_EQ(why(path_of("no_device")), "the CUDA driver finds no device");
  EXPECT_EQ(why(path_of("none_counted")), "the CUDA driver finds no device");
  EXPECT_EQ(why(path_of("stub")),
            "starting the CUDA driver: CUDA_ERROR_STUB_LIBRARY (CUDA driver is a stub library)");
  EXPECT_EQ(why(path_of("strange")), "starting the CUDA driver: CUDA error 999");
  EXPECT_EQ(why(path_of("old")),
            "the CUDA driver is for CUDA 12.8, but the kernels of this build are for CUDA 13.0 "
            "(driver 580)");
  EXPECT_EQ(why(path_of("without_launch")),
            "the CUDA driver is too old: " + path_of("without_launch") +
                " has no function cuLaunchKernel");
}

TEST(Drivers, ThatAreNoLibrarySayWhatTheLoaderSays) {
  const std::string file = testing::TempDir() + "qkv_no_library.so";
  std::ofstream(file) << "text";
  const std::string reason = why(file);
  EXPECT_TRUE(reason.starts_with("the CUDA driver cannot be opened: " + file)) << reason;
}

TEST(Drivers, RunKernelsOfEarlierVersionsAndOfTheSameMajorVersion) {
  for (const int version : {12080, 13000, 13020}) {
    EXPECT_EQ(Driver(path_of("devices").c_str(), version).why_no_device(), "") << version;
  }
  EXPECT_EQ(Driver(path_of("old").c_str(), 12090).why_no_device(), "");
}

TEST_F(Fake, DevicesThatTheKernelsCannotRunOnAreRefusedByName) {
  const auto refusal = [&](int device) {
    return message_of([&] { const CurrentContext context(driver_, "attention", device); });
  };
  EXPECT_EQ(refusal(1),
            "attention: stream has device 1 (Tesla T4), of compute capability 7.5, but the kernels "
            "need 8.0");
  EXPECT_EQ(refusal(3), "attention: stream has device 3, but there are only devices 0 to 2");
  EXPECT_EQ(refusal(-1), "attention: stream has device -1, but there are only devices 0 to 2");
  EXPECT_EQ(calls(), "");
  EXPECT_EQ(message_of([] {
              Driver none("libno_such_cuda.so.1", 13000);
              const CurrentContext context(none, "attention", 0);
            }),
            "attention: needs a CUDA device: no CUDA driver on this machine "
            "(libno_such_cuda.so.1)");
}

TEST_F(Fake, ContextsAreRetainedOncePushedAndPopped) {
  {
    const CurrentContext outer(driver_, "attention", 2);
    EXPECT_EQ(calls(), "retain 2\npush 2\n");
    {
      const CurrentContext inner(driver_, "attention", 2);
      EXPECT_EQ(calls(), "push 2\n");
    }
    EXPECT_EQ(calls(), "pop\n");
  }
  EXPECT_EQ(calls(), "pop\n");
}

TEST_F(Fake, KernelsAreLoadedOnceForEachDevice) {
  const cuda::Kernel& kernel = driver_.kernel(0, image_, "forward");
  EXPECT_EQ(kernel.handle, bytes_.data());
  EXPECT_EQ(kernel.device, 0);
  EXPECT_EQ(calls(), "retain 0\npush 0\nload\nfunction forward\npop\n");
  driver_.kernel(0, image_, "backward");
  EXPECT_EQ(calls(), "push 0\nfunction backward\npop\n");
  driver_.kernel(2, image_, "forward");
  EXPECT_EQ(calls(), "retain 2\npush 2\nload\nfunction forward\npop\n");
  EXPECT_EQ(&driver_.kernel(0, image_, "forward"), &kernel);
  EXPECT_EQ(calls(), "push 0\npop\n");
}

TEST_F(Fake, ManyThreadsLoadAKernelOnce) {
  std::vector<std::thread> threads;
  for (int n = 0; n < 8; ++n) {
    threads.emplace_back([&] { driver_.kernel(0, image_, "forward"); });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string text = calls();
  const auto count = [&](const std::string& call) {
    std::size_t found = 0;
    for (std::size_t at = text.find(call); at != std::string::npos; at = text.find(call, at + 1)) {
      ++found;
    }
    return found;
  };
  EXPECT_EQ(count("retain"), 1U);
  EXPECT_EQ(count("load"), 1U);
  EXPECT_EQ(count("function"), 1U);
  EXPECT_EQ(count("push"), 8U);
  EXPECT_EQ(count("pop"), 8U);
}

TEST_F(Fake, LaunchesHaveTheirSizesAndArguments) {
  cuda::Kernel& kernel = driver_.kernel(0, image_, "forward");
  calls();
  driver_.launch(kernel, {7, 5}, {128}, 1024, nullptr, 42, 1.5);
  EXPECT_EQ(calls(), "launch 7 5 1 128 1 1 1024 default 42 1.500000\n");
  int stream = 0;
  driver_.launch(kernel, {1, 2, 3}, {4, 5, 6}, 0, &stream, -1, 0.25);
  EXPECT_EQ(calls(), "launch 1 2 3 4 5 6 0 stream -1 0.250000\n");
}

TEST_F(Fake, TheLimitOfSharedMemoryOnlyGrows) {
  cuda::Kernel& kernel = driver_.kernel(0, image_, "forward");
  calls();
  driver_.launch(kernel, {}, {32}, 100'000, nullptr, 1, 1.0);
  EXPECT_TRUE(calls().starts_with("shared 100000\nlaunch"));
  driver_.launch(kernel, {}, {32}, 60'000, nullptr, 1, 1.0);
  EXPECT_TRUE(calls().starts_with("launch"));
  driver_.launch(kernel, {}, {32}, 100'001, nullptr, 1, 1.0);
  EXPECT_TRUE(calls().starts_with("shared 100001\nlaunch"));
}

TEST_F(Fake, ErrorsOfTheDriverHaveItsNameAndText) {
  const auto error = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const cuda::DriverError& thrown) {
      return std::to_string(thrown.code()) + " " + thrown.what();
    }
    return "none";
  };
  cuda::Kernel& kernel = driver_.kernel(0, image_, "forward");
  calls();
  EXPECT_EQ(error([&] { driver_.launch(kernel, {}, {32}, 300'000, nullptr, 1, 1.0); }),
            "1 starting forward on CUDA device 0: CUDA_ERROR_INVALID_VALUE (invalid argument)");
  EXPECT_EQ(error([&] { driver_.kernel(0, image_, "absent"); }),
            "500 loading absent on CUDA device 0: CUDA_ERROR_NOT_FOUND (named symbol not found)");
  EXPECT_EQ(calls(), "push 0\npop\n");
  EXPECT_EQ(error([&] { driver_.check(12345, "trying"); }), "12345 trying: CUDA error 12345");
  EXPECT_EQ(error([&] { driver_.check(0, "trying"); }), "none");
}

// fake_driver.cc says what lies at these addresses.
TEST_F(Fake, KnowsWhereAnAddressPoints) {
  const auto at = [&](std::uintptr_t address) {
    return driver_.memory_of(reinterpret_cast<const void*>(address));
  };
  EXPECT_EQ(at(0).kind, MemoryKind::kUnknown);
  EXPECT_EQ(at(1).kind, MemoryKind::kHost);
  EXPECT_EQ(at(2).kind, MemoryKind::kDevice);
  EXPECT_EQ(at(2).device, 2);
  EXPECT_EQ(at(3).kind, MemoryKind::kManaged);
  EXPECT_EQ(at(3).device, 0);
  EXPECT_EQ(at(4).kind, MemoryKind::kUnknown);
}

}  // namespace
}  // namespace qkv::test
