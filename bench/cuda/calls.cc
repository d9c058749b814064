// SPDX-License-Identifier: Apache-2.0
// C functions for qkv::cuda::attention() and attention_backward(), in a shared library that
// scripts/measure/cuda_calls.py loads on machines without a compiler. The arrays are PyTorch's.
#include <cstdint>
#include <exception>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <qkv/cuda.h>

namespace qkv {

// An array on the device; without a dtype it is absent.
struct QkvArray {
  void* data;
  const char* dtype;  // "bfloat16", or null
  int rank;
  std::int64_t shape[kMaxRank];
  std::int64_t strides[kMaxRank];
};

struct QkvCall {
  QkvArray q, k, v, cu_seqlens_q, cu_seqlens_k;
  QkvArray bias, keep, padding, key_lengths, alibi, sinks, offsets;
  QkvArray wq, wk, score_v, score_b;  // of an additive score; without wq: scaled dot
  QkvArray out, lse, row_max, column_sums, value_sums, entropy, weights;
  double scale;  // NaN: the default
  double softcap;
  int causal;                 // 0, or 1 for the mask j <= i + o
  int corner;                 // where the diagonal is: 0 bottom right, 1 top left
  std::int64_t window_left;   // -1: unbounded
  std::int64_t window_right;  // -1: unbounded
  double dropout;
  std::uint64_t seed;
  int device;
  void* stream;
};

// The arrays of a backward call that a QkvCall does not have.
struct QkvGradients {
  QkvArray dout, dlse;
  QkvArray dq, dk, dv;
};

namespace {

DType dtype_of(std::string_view name) {
#define QKV_NAMED(enumerator, type, its_name) \
  if (name == (its_name)) return DType::enumerator;
  QKV_FOR_EACH_DTYPE(QKV_NAMED)
#undef QKV_NAMED
  throw std::invalid_argument("no dtype " + std::string(name));
}

View view_of(const QkvArray& x) {
  if (x.dtype == nullptr) return {};
  const auto rank = static_cast<std::size_t>(x.rank);
  return {x.data, dtype_of(x.dtype), Dims(std::span<const Index>(x.shape, rank)),
          Dims(std::span<const Index>(x.strides, rank))};
}

Inputs inputs_of(const QkvCall& call) {
  return {view_of(call.q), view_of(call.k), view_of(call.v), view_of(call.cu_seqlens_q),
          view_of(call.cu_seqlens_k)};
}

Options options_of(const QkvCall& call) {
  Options options;
  if (call.wq.dtype != nullptr) {
    options.score =
        Additive{view_of(call.wq), view_of(call.wk), view_of(call.score_v), view_of(call.score_b)};
  }
  if (call.scale == call.scale) options.scale = call.scale;
  options.softcap = call.softcap;
  options.bias = view_of(call.bias);
  options.alibi = view_of(call.alibi);
  options.sinks = view_of(call.sinks);
  if (call.corner == 1) options.diagonal = TopLeft{};
  if (call.offsets.dtype != nullptr) options.diagonal = Offsets{view_of(call.offsets)};
  if (call.causal != 0) options.masks.emplace_back(Causal{});
  if (call.window_left >= 0 || call.window_right >= 0) {
    options.masks.emplace_back(Window{call.window_left, call.window_right});
  }
  if (call.keep.dtype != nullptr) options.masks.emplace_back(Keep{view_of(call.keep)});
  if (call.padding.dtype != nullptr) options.masks.emplace_back(Padding{view_of(call.padding)});
  if (call.key_lengths.dtype != nullptr) {
    options.masks.emplace_back(KeyLengths{view_of(call.key_lengths)});
  }
  options.dropout.p = call.dropout;
  if (call.dropout > 0) options.dropout.seed = call.seed;
  return options;
}

// Stores a text until the thread's next call, so that a C function can return it.
const char* keep_text(std::string text) {
  thread_local std::string stored;
  stored = std::move(text);
  return stored.c_str();
}

// Calls f(). Returns null, or the text of the exception, stored by keep_text().
template <class F>
const char* error_of(const F& f) {
  try {
    f();
  } catch (const std::exception& error) {
    return keep_text(error.what());
  }
  return nullptr;
}

}  // namespace

extern "C" {

[[gnu::visibility("default")]] const char* qkv_cuda_attention(const QkvCall* call);
[[gnu::visibility("default")]] const char* qkv_cuda_attention_backward(
    const QkvCall* call, const QkvGradients* gradients);
[[gnu::visibility("default")]] const char* qkv_cuda_why_no_device();
[[gnu::visibility("default")]] std::int64_t qkv_cuda_size_of_call();

// Puts a call into its stream. Returns null, or the text of an error, which is valid until the
// thread's next call of a function below. qkv_cuda_attention_backward() works alike.
const char* qkv_cuda_attention(const QkvCall* call) {
  return error_of([&] {
    const Outputs outputs{.out = view_of(call->out),
                          .lse = view_of(call->lse),
                          .row_max = view_of(call->row_max),
                          .entropy = view_of(call->entropy),
                          .column_sums = view_of(call->column_sums),
                          .value_sums = view_of(call->value_sums),
                          .weights = view_of(call->weights)};
    cuda::attention(inputs_of(*call), options_of(*call), outputs, {call->device, call->stream});
  });
}
const char* qkv_cuda_attention_backward(const QkvCall* call, const QkvGradients* gradients) {
  return error_of([&] {
    cuda::attention_backward(
        inputs_of(*call), options_of(*call), {view_of(call->out), view_of(call->lse)},
        {.out = view_of(gradients->dout), .lse = view_of(gradients->dlse)},
        {.q = view_of(gradients->dq), .k = view_of(gradients->dk), .v = view_of(gradients->dv)},
        {call->device, call->stream});
  });
}

// Why there is no device, or "".
const char* qkv_cuda_why_no_device() { return keep_text(cuda::why_no_device()); }

// The size of QkvCall in bytes. A caller compares it with the size of its own declaration.
std::int64_t qkv_cuda_size_of_call() { return sizeof(QkvCall); }

}  // extern "C"
}  // namespace qkv
