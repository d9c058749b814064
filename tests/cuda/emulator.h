// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_CUDA_EMULATOR_H_
#define QKV_TESTS_CUDA_EMULATOR_H_

#include <cstdint>
#include <functional>
#include <string>

// The emulator runs kernels of src/cuda/device on the host: it defines the operations of
// cuda/device/words.h. Each thread of a GPU is a fiber, which runs until an operation of several
// threads makes it wait for the others.
//
// Threads run in rounds, each in a random order, and warps are delayed at random. Shared memory
// begins as NaN. An asynchronous copy lands at once (the earliest legal time), only when it is
// waited for (the latest), or at a random time between the two, so that a missing wait or barrier,
// or a buffer that is reused too early, shows as a wrong result. Threads that wait for each other
// without end are an error. Approximate operations err by up to what the PTX manual permits; the
// error depends on the argument alone.
//
// The emulator cannot show the rounding inside tensor cores (products are summed here in float32,
// in ascending order), timing, or what the hardware does differently from the PTX manual.
namespace qkv::test {

struct EmulatedLaunch {
  std::int64_t blocks = 0;
  int threads = 0;
  std::size_t shared_bytes = 0;
  std::uint32_t seed = 0;
};

// Returns why emulate() cannot be used in this build, or an empty string. The address and thread
// sanitizers do not follow fibers from stack to stack.
std::string why_no_emulator();

// Runs the kernel in every thread of every block, one block after another. Throws
// std::runtime_error if the threads of a block wait for each other without end, or address shared
// memory that is not the block's, or is misaligned.
void emulate(const EmulatedLaunch& launch, const std::function<void()>& kernel);

}  // namespace qkv::test

#endif  // QKV_TESTS_CUDA_EMULATOR_H_
