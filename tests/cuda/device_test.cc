// SPDX-License-Identifier: Apache-2.0
// Tests the fat binaries of this build, and CUDA's driver where the machine has it.
#include <cstdint>
#include <cstring>
#include <stdexcept>

#include <gtest/gtest.h>

#include <qkv/cuda.h>

#include "cuda/driver.h"
#include "cuda/images.h"

namespace qkv::test {
namespace {

TEST(Images, AreFatBinaries) {
  EXPECT_EQ(cuda::images().empty(), cuda::toolkit_version() == 0);
  if (cuda::images().empty()) GTEST_SKIP() << cuda::why_no_device();
  EXPECT_GE(cuda::toolkit_version(), 12080);
  for (const cuda::Image& image : cuda::images()) {
    // The header of a fat binary has 16 bytes: a magic number, a version and the header's size in
    // the first 8, and the size of the rest in the last 8.
    ASSERT_GT(image.bytes.size(), 16U) << image.name;
    std::uint32_t magic = 0;
    std::memcpy(&magic, image.bytes.data(), sizeof magic);
    EXPECT_EQ(magic, 0xBA55ED50U) << image.name;
    std::uint64_t rest = 0;
    std::memcpy(&rest, image.bytes.data() + 8, sizeof rest);
    EXPECT_EQ(image.bytes.size(), 16 + rest) << image.name;
    EXPECT_EQ(&cuda::image(image.name), &image);
  }
  EXPECT_THROW(cuda::image("no such image"), std::logic_error);
}

TEST(Devices, AreThereOrThereIsAReason) {
  EXPECT_EQ(cuda::devices().empty(), !cuda::why_no_device().empty());
  EXPECT_EQ(cuda::why_no_device().find('\n'), std::string::npos);
  if (cuda::images().empty()) {
    EXPECT_EQ(cuda::why_no_device(), "this build has no CUDA kernels (QKV_CUDA)");
  }
}

TEST(Devices, RunKernels) {
  if (cuda::devices().empty()) GTEST_SKIP() << cuda::why_no_device();
  cuda::Driver& driver = cuda::driver();
  const cuda::Functions& call = driver.functions();
  for (const cuda::Device& device : cuda::devices()) {
    if (device.major < cuda::kLeastMajor) continue;
    const cuda::CurrentContext context(driver, "test", device.number);
    cuda::Address address = 0;
    driver.check(call.allocate(&address, sizeof(unsigned)), "allocating");
    const auto pointer = reinterpret_cast<unsigned*>(address);  // NOLINT(performance-no-int-to-ptr)
    EXPECT_EQ(driver.memory_of(pointer).kind, cuda::MemoryKind::kDevice);
    EXPECT_EQ(driver.memory_of(pointer).device, device.number);
    unsigned value = 0;
    EXPECT_EQ(driver.memory_of(&value).kind, cuda::MemoryKind::kUnknown);
    cuda::Kernel& kernel = driver.kernel(device.number, cuda::image("kernels"), "qkv_probe");
    driver.launch(kernel, {}, {}, 0, nullptr, address, 0xC0FFEEU);
    driver.check(call.copy_to_host(&value, address, sizeof value, nullptr), "copying");
    driver.check(call.synchronize(nullptr), "waiting");
    EXPECT_EQ(value, 0xC0FFEEU);
    driver.check(call.free(address), "freeing");
  }
}

}  // namespace
}  // namespace qkv::test
