// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/device_forward.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <stdexcept>
#include <variant>
#include <vector>

#include <qkv/cuda.h>

#include "cuda/driver.h"
#include "cuda/functions.h"

namespace qkv::test {
namespace {

// Returns the number of the first device that kernels of this build can run on, or -1.
int usable_device() {
  for (const cuda::Device& device : cuda::devices()) {
    if (device.major >= cuda::kLeastMajor) return device.number;
  }
  return -1;
}

// Memory of the current context for a copy of a host array, between two bands of bytes 0xFF. A
// kernel that reads a band as reals gets NaN.
class OnDevice {
 public:
  OnDevice(const cuda::Driver& driver, const ConstView& host) : driver_(driver) {
    Index lowest = 0;
    Index highest = 0;
    bool empty = false;
    for (int axis = 0; axis < host.rank(); ++axis) {
      empty = empty || host.size(axis) == 0;
      const Index last = (host.size(axis) - 1) * host.stride(axis);
      (last < 0 ? lowest : highest) += last;
    }
    const auto element = static_cast<Index>(size_of(host.dtype()));
    if (!empty) bytes_ = static_cast<std::size_t>((highest - lowest + 1) * element);
    host_ = reinterpret_cast<std::uintptr_t>(host.data()) +
            static_cast<std::uintptr_t>(empty ? 0 : lowest * element);
    before_ = kBand + host_ % kBand;
    check(driver_.functions().allocate(&memory_, before_ + bytes_ + kBand));
    const std::uintptr_t first =
        memory_ + before_ + static_cast<std::uintptr_t>(empty ? 0 : -lowest * element);
    view_ = View(reinterpret_cast<void*>(first),  // NOLINT(performance-no-int-to-ptr)
                 host.dtype(), host.shape(), host.strides());
  }
  ~OnDevice() { driver_.functions().free(memory_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  const View& view() const { return view_; }

  // Fills the bands, and copies the host's array or the given bytes to the device.
  void put() { put(host_bytes()); }
  std::vector<std::uint8_t> host_bytes() const { return {host_data(), host_data() + bytes_}; }
  void put(const std::vector<std::uint8_t>& bytes) {
    check(driver_.functions().set_bytes(memory_, 0xFF, before_ + bytes_ + kBand, nullptr));
    if (bytes_ == 0) return;
    check(driver_.functions().copy_to_device(memory_ + before_, bytes.data(), bytes_, nullptr));
  }

  // Returns the bytes on the device: the array's and those of the bands around it.
  std::vector<std::uint8_t> all_bytes() const {
    std::vector<std::uint8_t> all(before_ + bytes_ + kBand);
    check(driver_.functions().copy_to_host(all.data(), memory_, all.size(), nullptr));
    check(driver_.functions().synchronize(nullptr));
    return all;
  }

  // Whether the bytes on the device, bands included, are as put() without an argument wrote them.
  bool is_intact() const {
    std::vector<std::uint8_t> all(before_ + bytes_ + kBand, 0xFF);
    std::copy_n(host_data(), bytes_, all.begin() + static_cast<std::ptrdiff_t>(before_));
    return all_bytes() == all;
  }

  // Copies the array in `all`, which all_bytes() returned, to the host. Returns whether the bands
  // are unchanged.
  bool put_back(const std::vector<std::uint8_t>& all) const {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(before_);
    const auto end = first + static_cast<std::ptrdiff_t>(bytes_);
    std::copy(first, end, host_data());
    const auto is_band = [](std::uint8_t byte) { return byte == 0xFF; };
    return std::all_of(all.begin(), first, is_band) && std::all_of(end, all.end(), is_band);
  }

 private:
  // The least size of a band in bytes, a multiple of every alignment.
  static constexpr std::size_t kBand = 256;

  std::uint8_t* host_data() const {
    return reinterpret_cast<std::uint8_t*>(host_);  // NOLINT(performance-no-int-to-ptr)
  }
  void check(cuda::Status status) const { driver_.check(status, "testing"); }

  const cuda::Driver& driver_;
  std::uintptr_t host_ = 0;  // address of the lowest element
  std::size_t bytes_ = 0;
  // Size of the first band, by which the lowest element keeps its alignment.
  std::size_t before_ = 0;
  cuda::Address memory_ = 0;
  View view_;
};

// A call whose arrays are on the device.
class DeviceCall {
 public:
  DeviceCall(const cuda::Driver& driver, const Inputs& inputs, const Options& options)
      : driver_(driver), inputs_(inputs), options_(options) {
    for (ConstView* view :
         {&inputs_.q, &inputs_.k, &inputs_.v, &inputs_.cu_seqlens_q, &inputs_.cu_seqlens_k,
          &options_.bias, &options_.alibi, &options_.sinks}) {
      move(*view);
    }
    std::visit(MoveScore{*this}, options_.score);
    if (auto* offsets = std::get_if<Offsets>(&options_.diagonal)) move(offsets->o);
    for (Mask& mask : options_.masks) std::visit(MoveMask{*this}, mask);
  }

  const Inputs& inputs() const { return inputs_; }
  const Options& options() const { return options_; }
  // Replaces an array that the call reads by a copy on the device.
  void move(ConstView& view) {
    if (!view.given()) return;
    OnDevice& array = arrays_.emplace_back(driver_, view);
    array.put();
    read_.push_back(&array);
    view = array.view();
  }
  // Replaces a result by memory on the device, from which run() copies it back.
  void move_result(View& view) {
    if (!view.given()) return;
    results_.push_back(&arrays_.emplace_back(driver_, view));
    view = results_.back()->view();
  }

  // Calls f() `runs` times, each time with results that have the bytes they had before run().
  // Copies the results of the first run to the host. Throws std::runtime_error if a run writes to
  // other bytes than those of results, or if its results differ from the first run's.
  template <class F>
  void run(int runs, const F& f) {
    const std::vector<std::vector<std::uint8_t>> first = run_once(f);
    bool intact = true;
    for (std::size_t n = 0; n < first.size(); ++n) {
      initial_.push_back(results_[n]->host_bytes());
      intact = results_[n]->put_back(first[n]) && intact;
    }
    if (!intact) throw std::runtime_error("bytes around a result on the device were written");
    for (int run = 1; run < runs; ++run) {
      if (run_once(f) != first) throw std::runtime_error("two runs differ in bits");
    }
    for (const OnDevice* array : read_) {
      if (!array->is_intact()) throw std::runtime_error("an array that is only read was written");
    }
  }

 private:
  struct MoveScore {
    DeviceCall& call;
    void operator()(Additive& score) const {
      for (ConstView* view : {&score.wq, &score.wk, &score.v, &score.b}) call.move(*view);
    }
    template <class Other>
    void operator()(Other&) const {}  // no kernel reads its arrays
  };
  struct MoveMask {
    DeviceCall& call;
    void operator()(Keep& mask) const { call.move(mask.keep); }
    void operator()(Padding& mask) const { call.move(mask.padding); }
    void operator()(KeyLengths& mask) const { call.move(mask.lengths); }
    template <class Other>
    void operator()(Other&) const {}  // has no array that a kernel reads
  };

  // Calls f() once and returns the bytes of all results, with their bands.
  template <class F>
  std::vector<std::vector<std::uint8_t>> run_once(const F& f) {
    for (std::size_t n = 0; n < results_.size(); ++n) {
      if (initial_.empty()) {
        results_[n]->put();
      } else {
        results_[n]->put(initial_[n]);
      }
    }
    f();
    std::vector<std::vector<std::uint8_t>> all;
    for (const OnDevice* result : results_) all.push_back(result->all_bytes());
    return all;
  }

  const cuda::Driver& driver_;
  Inputs inputs_;
  Options options_;
  std::deque<OnDevice> arrays_;
  std::vector<const OnDevice*> read_;
  std::vector<OnDevice*> results_;
  std::vector<std::vector<std::uint8_t>> initial_;  // bytes of the results before the first run
};

}  // namespace

std::string why_no_device_attention() {
  if (cuda::devices().empty()) return cuda::why_no_device();
  return usable_device() < 0 ? "no CUDA device is new enough" : "";
}

void device_attention(const Inputs& inputs, const Options& options, const Outputs& outputs,
                      int runs) {
  const int device = usable_device();
  cuda::Driver& driver = cuda::driver();
  const cuda::CurrentContext context(driver, "test", device);
  DeviceCall call(driver, inputs, options);
  Outputs to = outputs;
  for (View* view : {&to.out, &to.lse, &to.row_max, &to.entropy, &to.column_sums.sums,
                     &to.value_sums, &to.weights.matrix}) {
    call.move_result(*view);
  }
  call.run(runs, [&] { cuda::attention(call.inputs(), call.options(), to, {.device = device}); });
}

void device_backward(const Inputs& inputs, const Options& options, const Saved& saved,
                     const OutputGradients& sources, const InputGradients& gradients, int runs) {
  const int device = usable_device();
  cuda::Driver& driver = cuda::driver();
  const cuda::CurrentContext context(driver, "test", device);
  DeviceCall call(driver, inputs, options);
  Saved saved_copy = saved;
  OutputGradients from = sources;
  InputGradients to = gradients;
  for (ConstView* view : {&saved_copy.out, &saved_copy.lse, &from.out, &from.lse}) call.move(*view);
  for (View* view : {&to.q, &to.k, &to.v, &to.bias, &to.alibi, &to.sinks}) {
    call.move_result(*view);
  }
  if (auto* score = std::get_if<Additive::Gradient>(&to.score)) {
    for (View* view : {&score->wq, &score->wk, &score->v, &score->b}) call.move_result(*view);
  }
  call.run(runs, [&] {
    cuda::attention_backward(call.inputs(), call.options(), saved_copy, from, to,
                             {.device = device});
  });
}

}  // namespace qkv::test
