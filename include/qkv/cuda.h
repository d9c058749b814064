// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_H_
#define QKV_CUDA_H_

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include <qkv/attention.h>
#include <qkv/export.h>

// Attention on NVIDIA GPUs. These calls have arrays in the memory of a device; all others have them
// in the memory of the host. No part of CUDA is needed to build or link a program: the driver is
// opened when the first of these functions is called.
namespace qkv::cuda {

// The least compute capability of a device that the kernels can run on. A call on another device is
// an Error.
constexpr int kLeastMajor = 8;

// A GPU that the driver lists, be it new enough or not.
struct Device {
  int number = 0;  // as the driver counts, which obeys CUDA_VISIBLE_DEVICES
  std::string name{};
  std::size_t memory_bytes = 0;
  int major = 0;  // compute capability major.minor
  int minor = 0;
  int multiprocessors = 0;
};

// The devices; none if the build has no CUDA kernels or the machine no driver that can run them.
// The first call starts the driver; a process that is forked later cannot use CUDA.
QKV_API std::vector<Device> devices();

// Why devices() is empty, in one line; "" if it is not.
QKV_API std::string why_no_device();

// The queue of a device in which a call puts its work.
struct Stream {
  int device = 0;
  void* handle = nullptr;  // a CUstream or cudaStream_t of this device; null: the default stream
};

// attention() on a device. All arrays of the call, its options and its results are in the memory of
// the stream's device; shapes, dtypes, options and errors are those of qkv::attention(). The call
// puts its work into the stream and returns; it does not synchronise, and the arrays have to stay
// until the work is done. docs/cuda.md lists what the kernels support, and which calls take memory
// of the device in the order of the stream (cuMemAllocAsync).
//
// The numbers in arrays of key lengths, offsets and cu_seqlens are not read on the host: lengths
// count as at most Tk, and no row outside of q, k and v is read, whatever the numbers are.
//
// Throws Error for what qkv::attention() refuses, for an array in other memory, for a device that
// is not there, and for what no kernel supports; DriverError if the driver fails.
QKV_API void attention(const Inputs& inputs, const Options& options, const Outputs& outputs,
                       const Stream& stream = {});

// attention_backward() on a device; docs/cuda.md lists the gradients. Arrays, the stream and errors
// are as for attention() above.
QKV_API void attention_backward(const Inputs& inputs, const Options& options, const Saved& saved,
                                const OutputGradients& output_gradients,
                                const InputGradients& input_gradients, const Stream& stream = {});

// The driver has failed: out of memory on the device, a failed launch. `what()` reads
// "action: NAME (description)", for example
//   starting qkv_probe on CUDA device 0: CUDA_ERROR_OUT_OF_MEMORY (out of memory)
class QKV_API DriverError : public std::runtime_error {
 public:
  DriverError(const std::string& message, int code);
  ~DriverError() override;

  int code() const noexcept { return code_; }  // a CUresult

 private:
  int code_;
};

}  // namespace qkv::cuda

#endif  // QKV_CUDA_H_
