// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <functional>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <qkv/mods.h>
#include <qkv/tensor.h>

#include "attention/validate/bind.h"
#include "attention/validate/resolve.h"
#include "tests/support/errors.h"

// Validation of calls whose arrays lie in device memory. The addresses of such arrays can here be
// neither read nor written, so that an access ends the program.
namespace qkv::test {
namespace {

using core::Memory;

// Makes arrays in one kind of memory: host arrays of zeros, or device arrays whose elements can be
// neither read nor written.
class Arrays {
 public:
  explicit Arrays(Memory memory) : memory_(memory) {
    const int access = memory == Memory::kDevice ? PROT_NONE : PROT_READ | PROT_WRITE;
    void* mapped =
        ::mmap(nullptr, kBytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();  // NOLINT(performance-no-int-to-ptr)
    mapped_ = static_cast<std::byte*>(mapped);
  }
  Arrays(const Arrays&) = delete;
  Arrays& operator=(const Arrays&) = delete;
  ~Arrays() { ::munmap(mapped_, kBytes); }

  Memory memory() const { return memory_; }
  View operator()(DType dtype, const Dims& shape) {
    return with_strides(dtype, shape, contiguous_strides(shape));
  }
  View with_strides(DType dtype, const Dims& shape, const Dims& strides) {
    std::byte* data = mapped_ + used_;
    used_ += kBytesOfOne;
    if (used_ > kBytes) throw std::bad_alloc();
    return {data, dtype, shape, strides};
  }

 private:
  static constexpr std::size_t kBytesOfOne = std::size_t{1} << 14;
  static constexpr std::size_t kBytes = 1024 * kBytesOfOne;
  Memory memory_;
  std::byte* mapped_ = nullptr;
  std::size_t used_ = 0;
};

struct Call {
  Inputs inputs;
  Options options;
  Outputs outputs;
};

void validate(const Call& call, Memory memory, core::ResolvedProblem& p, core::Results& results) {
  attn::resolve("attention", {}, call.inputs, call.options, p, {.memory = memory});
  results = attn::bind_outputs(p, call.outputs);
  attn::check_overlap(p, call.inputs, call.options, call.outputs);
}

// The dtype of q, k, v and out, and the type of sums.
constexpr DType kReal = DType::kBFloat16, kSums = DType::kFloat32;
constexpr Index kB = 2, kH = 4, kG = 2, kTq = 5, kTk = 7, kD = 8, kE = 6, kU = 3;

// A call with batch entries, without options.
Call padded(Arrays& arrays) {
  return {.inputs = {.q = arrays(kReal, {kB, kH, kTq, kD}),
                     .k = arrays(kReal, {kB, kG, kTk, kD}),
                     .v = arrays(kReal, {kB, kG, kTk, kE})},
          .options = {},
          .outputs = {.out = arrays(kReal, {kB, kH, kTq, kE})}};
}

constexpr Index kQueries = 11, kKeys = 13;

// A call with packed sequences, without options.
Call packed(Arrays& arrays) {
  return {.inputs = {.q = arrays(kReal, {kQueries, kH, kD}),
                     .k = arrays(kReal, {kKeys, kG, kD}),
                     .v = arrays(kReal, {kKeys, kG, kE}),
                     .cu_seqlens_q = arrays(DType::kInt32, Dims(kB + 1)),
                     .cu_seqlens_k = arrays.with_strides(DType::kInt64, Dims(kB + 1), Dims(3))},
          .options = {},
          .outputs = {.out = arrays(kReal, {kQueries, kH, kE})}};
}

std::vector<Score> all_scores(Arrays& arrays) {
  return {ScaledDot{}, Dot{}, Bilinear{arrays(kSums, {kH, kD, kD})},
          Additive{arrays(kSums, {kU, kD}), arrays(kSums, {kU, kD}), arrays(kSums, Dims(kU)),
                   arrays(kSums, {kH, kU})},
          Cosine{}};
}

std::vector<Diagonal> all_diagonals(Arrays& arrays) {
  return {BottomRight{}, TopLeft{}, Offset{-2}, Offsets{arrays(DType::kInt64, Dims(kB))}};
}

// Options that calls with batch entries and with packed sequences may have.
Options any_options(Arrays& arrays) {
  return {.scale = 0.5,
          .softcap = 30,
          .alibi = arrays(kSums, {kB, kH}),
          .masks = {Causal{}, Window{3, 1}, KeyLengths{arrays(DType::kInt32, Dims(kB))}},
          .sinks = arrays(kReal, Dims(kH)),
          .dropout = {0.1, 7}};
}

// Calls f(options) for every score and diagonal.
template <class F>
void for_each_kind(Arrays& arrays, Options options, const F& f) {
  const std::vector<Score> scores = all_scores(arrays);
  const std::vector<Diagonal> diagonals = all_diagonals(arrays);
  EXPECT_EQ(scores.size(), std::variant_size_v<Score>);
  EXPECT_EQ(diagonals.size(), std::variant_size_v<Diagonal>);
  for (const Score& score : scores) {
    for (const Diagonal& diagonal : diagonals) {
      SCOPED_TRACE(std::string(name_of(score)) + ", " + std::string(name_of(diagonal)));
      options.score = score;
      options.diagonal = diagonal;
      f(options);
    }
  }
}

TEST(DeviceArrays, CallsWithBatchEntriesAreResolvedUnread) {
  Arrays arrays(Memory::kDevice);
  Call call = padded(arrays);
  Options options = any_options(arrays);
  options.bias = arrays(kSums, {1, kH, kTq, kTk});
  options.masks.emplace_back(Keep{arrays(DType::kBool, {kTq, kTk})});
  options.masks.emplace_back(Padding{arrays(DType::kBool, {kB, kTk})});
  options.masks.emplace_back(KeyLengths{arrays(DType::kInt64, {kB, kTq})});
  const View out = call.outputs.out;
  call.outputs = {
      .out = out,
      .lse = arrays(kSums, {kB, kH, kTq}),
      .row_max = arrays(kSums, {kB, kH, kTq}),
      .entropy = arrays(kSums, {kB, kH, kTq}),
      .column_sums = arrays(kSums, {kB, kH, kTk}),
      .value_sums = arrays(kSums, {kB, kH, kTk}),
      .pooled = arrays(kSums, {kB, kH, 2, 3}),
      .top = {3, arrays(kSums, {kB, kH, kTq, 3}), arrays(DType::kInt32, {kB, kH, kTq, 3})},
      .weights = arrays(kSums, {kB, kH, kTq, kTk}),
      .dropped_weights = arrays(kSums, {kB, kH, kTq, kTk}),
      .raw_scores = arrays(kSums, {kB, kH, kTq, kTk}),
      .capped_scores = arrays(kSums, {kB, kH, kTq, kTk}),
      .masked_scores = arrays(kSums, {kB, kH, kTq, kTk})};
  for_each_buffer(call.outputs, [](std::string_view name, const View& buffer) {
    EXPECT_TRUE(buffer.given()) << name;
  });
  for_each_kind(arrays, options, [&](const Options& one) {
    call.options = one;
    core::ResolvedProblem p;
    core::Results results;
    validate(call, Memory::kDevice, p, results);
    EXPECT_TRUE(p.on_device());
    EXPECT_EQ(p.k.data, call.inputs.k.data());
    EXPECT_EQ(p.Tk, kTk);
    EXPECT_EQ(p.masks.size(), one.masks.size());
    EXPECT_EQ(p.offsets.given(), std::holds_alternative<Offsets>(one.diagonal));
    EXPECT_EQ(results.out.data, out.data());
    EXPECT_EQ(results.masked_scores.matrix.data, call.outputs.masked_scores.matrix.data());
  });
}

TEST(DeviceArrays, PackedSequencesAreResolvedUnread) {
  Arrays arrays(Memory::kDevice);
  Call call = packed(arrays);
  call.outputs.lse = arrays(kSums, {kH, kQueries});
  call.outputs.row_max = arrays(kSums, {kH, kQueries});
  call.outputs.entropy = arrays(kSums, {kH, kQueries});
  call.outputs.column_sums = arrays(kSums, {kH, kKeys});
  call.outputs.value_sums = arrays(kSums, {kH, kKeys});
  call.outputs.pooled = arrays(kSums, {kB, kH, 2, 3});
  call.outputs.top = {3, arrays(kSums, {kH, kQueries, 3}),
                      arrays(DType::kInt64, {kH, kQueries, 3})};
  for_each_kind(arrays, any_options(arrays), [&](const Options& one) {
    call.options = one;
    core::ResolvedProblem p;
    core::Results results;
    validate(call, Memory::kDevice, p, results);
    EXPECT_TRUE(p.packed());
    EXPECT_EQ(p.B, kB);
    EXPECT_EQ(p.Tq, kQueries);
    EXPECT_EQ(p.Tk, kKeys);
    EXPECT_EQ(p.cu_seqlens_q.data, call.inputs.cu_seqlens_q.data());
    EXPECT_EQ(p.cu_seqlens_q.dtype, DType::kInt32);
    EXPECT_EQ(p.cu_seqlens_q.row_stride, 1);
    EXPECT_EQ(p.cu_seqlens_k.data, call.inputs.cu_seqlens_k.data());
    EXPECT_EQ(p.cu_seqlens_k.dtype, DType::kInt64);
    EXPECT_EQ(p.cu_seqlens_k.row_stride, 3);
    EXPECT_EQ(results.lse.data, call.outputs.lse.data());
  });
}

TEST(DeviceArrays, GradientsAreBoundUnread) {
  Arrays arrays(Memory::kDevice);
  for (Call call : {padded(arrays), packed(arrays)}) {
    const bool is_packed = call.inputs.cu_seqlens_q.given();
    const Dims rows = is_packed ? Dims{kH, kQueries} : Dims{kB, kH, kTq};
    call.options = any_options(arrays);
    core::ResolvedProblem p;
    attn::resolve("attention_backward", {}, call.inputs, call.options, p,
                  {.memory = Memory::kDevice});
    const Saved saved{call.outputs.out, arrays(kSums, rows)};
    const OutputGradients sources{
        .out = arrays(kReal, call.outputs.out.shape()), .lse = {}, .weights = {}};
    const InputGradients gradients{.q = arrays(kReal, call.inputs.q.shape()),
                                   .sinks = arrays(kReal, Dims(kH))};
    attn::bind_sources(p, saved, sources);
    const core::GradientResults to = attn::bind_gradients(p, call.inputs, call.options, gradients);
    attn::check_overlap(p, call.inputs, call.options, saved, sources, gradients);
    EXPECT_EQ(to.q.direct.data, gradients.q.data());
  }
}

// A problem that was resolved for device memory can be resolved again for a call in host memory.
TEST(DeviceArrays, ProblemsAreReusedForHostMemory) {
  Arrays device(Memory::kDevice), host(Memory::kHost);
  core::ResolvedProblem p;
  core::Results results;
  validate(packed(device), Memory::kDevice, p, results);
  Call call = packed(host);
  const std::vector<Index> starts_q{0, 4, kQueries}, starts_k{0, 13, kKeys};
  call.inputs.cu_seqlens_q = starts_q;
  call.inputs.cu_seqlens_k = starts_k;
  validate(call, Memory::kHost, p, results);
  EXPECT_FALSE(p.on_device());
  EXPECT_EQ(p.Tq, 7);
  EXPECT_EQ(p.sequence(0).Tk, 13);
}

// ---- errors -----------------------------------------------------------------------------------

// A change that makes a call wrong. Arrays makes its arrays, in the same memory as the call's.
using Change = std::function<void(Arrays&, Call&)>;
struct Wrong {
  const char* error;
  Change change;
};
using Make = std::function<Call(Arrays&)>;

std::string error_of(const Wrong& wrong, const Make& make, Memory memory) {
  Arrays arrays(memory);
  Call call = make(arrays);
  wrong.change(arrays, call);
  core::ResolvedProblem p;
  core::Results results;
  return test::error_of([&] { validate(call, memory, p, results); });
}

TEST(DeviceArrays, UnavailableOptionsAreRefusedByName) {
  const Wrong all[] = {
      {"attention: qk_norm is not available for arrays in device memory",
       [](Arrays&, Call& call) { call.options.qk_norm = QkNorm{}; }},
      {"attention: rotary is not available for arrays in device memory",
       [](Arrays& arrays, Call& call) {
         call.options.rotary = Rotary{.q_positions = arrays(DType::kInt64, Dims(kTq))};
       }},
      {"attention: mods is not available for arrays in device memory",
       [](Arrays&, Call& call) {
         call.options.mods.push_back(score_mod([](auto s, const At&) { return s; }));
       }},
      {"attention: mask_mod is not available for arrays in device memory",
       [](Arrays&, Call& call) {
         call.options.masks.emplace_back(mask_mod([](const At&) { return true; }));
       }},
      {"attention: block_tables is not available for arrays in device memory",
       [](Arrays& arrays, Call& call) {
         call.inputs.k = arrays(kReal, {3, 16, kG, kD});
         call.inputs.v = arrays(kReal, {3, 16, kG, kE});
         call.inputs.block_tables = arrays(DType::kInt32, {kB, 2});
         call.inputs.context_lens = arrays(DType::kInt32, Dims(kB));
       }},
      {"attention: context_lens is not available for arrays in device memory",
       [](Arrays& arrays, Call& call) {
         call.inputs.context_lens = arrays(DType::kInt32, Dims(kB));
       }},
      {"TypeError: attention: k is q8, which is not available for arrays in device memory",
       [](Arrays& arrays, Call& call) {
         call.inputs.q = arrays(DType::kFloat32, {kB, kH, kTq, kD});
         call.inputs.k = arrays(DType::kQ8, {kB, kG, kTk, 1});
         call.inputs.v = arrays(DType::kQ8, {kB, kG, kTk, 1});
       }},
      {"attention: weights.rows is not available for arrays in device memory",
       [](Arrays& arrays, Call& call) {
         call.outputs.weights = {arrays(DType::kInt64, Dims(2)), arrays(kSums, {kB, kH, 2, kTk})};
       }},
      {"attention: column_sums.rows is not available for arrays in device memory",
       [](Arrays& arrays, Call& call) {
         call.outputs.column_sums = {arrays(DType::kInt64, Dims(2)), arrays(kSums, {kB, kH, kTk})};
       }},
  };
  for (const Wrong& wrong : all) {
    EXPECT_EQ(error_of(wrong, padded, Memory::kDevice), wrong.error);
  }
}

TEST(DeviceArrays, ListedRowsOfGradientsAreRefused) {
  Arrays arrays(Memory::kDevice);
  const Call call = padded(arrays);
  core::ResolvedProblem p;
  attn::resolve("attention_backward", {}, call.inputs, call.options, p,
                {.memory = Memory::kDevice});
  const ConstRows weights(arrays(DType::kInt64, Dims(2)), arrays(kSums, {kB, kH, 2, kTk}));
  EXPECT_EQ(test::error_of([&] {
              attn::bind_sources(p, {.out = {}, .lse = arrays(kSums, {kB, kH, kTq})},
                                 {.out = {}, .lse = {}, .weights = weights});
            }),
            "attention_backward: output_gradients.weights.rows is not available for arrays in "
            "device memory");
}

TEST(DeviceArrays, CuSeqlensAreCheckedForShapeAndType) {
  const Wrong all[] = {
      {"TypeError: attention: cu_seqlens_k must be int32 or int64 in device memory, got uint8 [3]",
       [](Arrays& arrays, Call& call) {
         call.inputs.cu_seqlens_k = arrays(DType::kUInt8, Dims(kB + 1));
       }},
      {"attention: cu_seqlens_k has B = 3 but cu_seqlens_q has B = 2 (cu_seqlens_q [3], "
       "cu_seqlens_k [4])",
       [](Arrays& arrays, Call& call) {
         call.inputs.cu_seqlens_k = arrays(DType::kInt32, Dims(kB + 2));
       }},
      {"attention: cu_seqlens_q must have the shape [B+1] with B = 1 or more where q has 11 rows, "
       "got int32 [1]",
       [](Arrays& arrays, Call& call) {
         call.inputs.cu_seqlens_q = arrays(DType::kInt32, Dims(1));
       }},
  };
  for (const Wrong& wrong : all) {
    EXPECT_EQ(error_of(wrong, packed, Memory::kDevice), wrong.error);
  }
}

// Expects that each change, applied to the call that `make` returns, causes the same error in host
// and in device memory, and that the error begins with Wrong::error.
void expect_same_errors(const Make& make, std::span<const Wrong> all) {
  for (const Wrong& wrong : all) {
    const std::string on_host = error_of(wrong, make, Memory::kHost);
    EXPECT_TRUE(on_host.starts_with(wrong.error)) << wrong.error << "\n" << on_host;
    EXPECT_EQ(error_of(wrong, make, Memory::kDevice), on_host);
  }
}

TEST(DeviceArrays, OtherErrorsOfBatchEntriesAreThoseOfHostMemory) {
  const Wrong all[] = {
      {"TypeError: attention: k must be float64, float32, bfloat16, float16 or q8, got int32",
       [](Arrays& arrays, Call& call) {
         call.inputs.k = arrays(DType::kInt32, {kB, kG, kTk, kD});
       }},
      {"TypeError: attention: v must be bfloat16 where k is bfloat16",
       [](Arrays& arrays, Call& call) {
         call.inputs.v = arrays(DType::kFloat16, {kB, kG, kTk, kE});
       }},
      {"attention: k is absent", [](Arrays&, Call& call) { call.inputs.k = {}; }},
      {"attention: q has H = 3, which is not a multiple of G = 2",
       [](Arrays& arrays, Call& call) {
         call.inputs.q = arrays(kReal, {kB, 3, kTq, kD});
       }},
      {"attention: v has Tk = 6 but k has Tk = 7",
       [](Arrays& arrays, Call& call) {
         call.inputs.v = arrays(kReal, {kB, kG, 6, kE});
       }},
      {"attention: bias must broadcast to",
       [](Arrays& arrays, Call& call) {
         call.options.bias = arrays(kSums, {kTq, 6});
       }},
      {"TypeError: attention: diagonal must be an integer type",
       [](Arrays& arrays, Call& call) {
         call.options.diagonal = Offsets{arrays(kSums, Dims(kB))};
       }},
      {"attention: diagonal must have the shape [B]",
       [](Arrays& arrays, Call& call) {
         call.options.diagonal = Offsets{arrays(DType::kInt32, Dims(3))};
       }},
      {"TypeError: attention: key_lengths must be an integer type",
       [](Arrays& arrays, Call& call) {
         call.options.masks = {KeyLengths{arrays(DType::kBool, Dims(kB))}};
       }},
      {"attention: key_lengths must have the shape [B] = [2] or [B,Tq]",
       [](Arrays& arrays, Call& call) {
         call.options.masks = {KeyLengths{arrays(DType::kInt32, {kB, kTk})}};
       }},
      {"attention: key_lengths must hold an array",
       [](Arrays&, Call& call) { call.options.masks = {KeyLengths{}}; }},
      {"attention: padding must have the shape [B,Tk]",
       [](Arrays& arrays, Call& call) {
         call.options.masks = {Padding{arrays(DType::kBool, {kB, kTq})}};
       }},
      {"attention: sinks must have the shape [H]",
       [](Arrays& arrays, Call& call) { call.options.sinks = arrays(kSums, Dims(3)); }},
      {"attention: dropout.seed is absent",
       [](Arrays&, Call& call) { call.options.dropout.p = 0.5; }},
      {"TypeError: attention: out must be bfloat16",
       [](Arrays& arrays, Call& call) {
         call.outputs.out = arrays(kSums, {kB, kH, kTq, kE});
       }},
      {"attention: lse must have the shape",
       [](Arrays& arrays, Call& call) {
         call.outputs.lse = arrays(kSums, {kB, kH, kTk});
       }},
      {"attention: outputs name no buffer", [](Arrays&, Call& call) { call.outputs = {}; }},
      {"attention: out must not overlap itself",
       [](Arrays& arrays, Call& call) {
         call.outputs.out = arrays.with_strides(kReal, {kB, kH, kTq, kE}, {0, kTq * kE, kE, 1});
       }},
      {"attention: out must not share memory with bias",
       [](Arrays& arrays, Call& call) {
         const View out = arrays(kReal, {kB, kH, kTq, kE});
         call.outputs.out = out;
         call.options.bias = slice(out, -1, 0, 1);
       }},
  };
  expect_same_errors(padded, all);
}

TEST(DeviceArrays, OtherErrorsOfPackedSequencesAreThoseOfHostMemory) {
  const Wrong all[] = {
      {"attention: cu_seqlens_k is absent",
       [](Arrays&, Call& call) { call.inputs.cu_seqlens_k = {}; }},
      {"TypeError: attention: cu_seqlens_q must be an integer type, got float32 [3]",
       [](Arrays& arrays, Call& call) { call.inputs.cu_seqlens_q = arrays(kSums, Dims(kB + 1)); }},
      {"attention: cu_seqlens_q must have the shape [B+1], got int32 [3,1]",
       [](Arrays& arrays, Call& call) {
         call.inputs.cu_seqlens_q = arrays(DType::kInt32, {kB + 1, 1});
       }},
      {"attention: cu_seqlens_q must have the shape [B+1], got int32 [0]",
       [](Arrays& arrays, Call& call) {
         call.inputs.cu_seqlens_q = arrays(DType::kInt32, Dims(0));
       }},
      {"attention: q must have rank 3 with packed sequences",
       [](Arrays& arrays, Call& call) {
         call.inputs.q = arrays(kReal, {1, kQueries, kH, kD});
       }},
      {"attention: v has G = 1 but k has G = 2",
       [](Arrays& arrays, Call& call) {
         call.inputs.v = arrays(kReal, {kKeys, 1, kE});
       }},
      {"attention: q has H = 3, which is not a multiple of G = 2",
       [](Arrays& arrays, Call& call) {
         call.inputs.q = arrays(kReal, {kQueries, 3, kD});
       }},
      {"attention: v has Tk = 12 but k has Tk = 13",
       [](Arrays& arrays, Call& call) {
         call.inputs.v = arrays(kReal, {12, kG, kE});
       }},
  };
  expect_same_errors(packed, all);

  // In host memory cu_seqlens is checked before these errors, so it needs valid numbers.
  const std::vector<Index> starts_q{0, 4, kQueries}, starts_k{0, 6, kKeys};
  const Wrong after_numbers[] = {
      {"attention: bias is not available with packed sequences",
       [](Arrays& arrays, Call& call) {
         call.options.bias = arrays(kSums, {1, 1});
       }},
      {"attention: keep is not available with packed sequences",
       [](Arrays& arrays, Call& call) {
         call.options.masks = {Keep{arrays(DType::kBool, {1, 1})}};
       }},
      {"attention: key_lengths must have the shape [B]",
       [](Arrays& arrays, Call& call) {
         call.options.masks = {KeyLengths{arrays(DType::kInt32, {kB, kTq})}};
       }},
      {"attention: lse must have the shape [H,sum Tq]",
       [](Arrays& arrays, Call& call) {
         call.outputs.lse = arrays(kSums, {kB, kH, kTq});
       }},
      {"attention: weights is not available with packed sequences",
       [](Arrays& arrays, Call& call) {
         call.outputs.weights = arrays(kSums, {kB, kH, kTq, kTk});
       }},
  };
  expect_same_errors(
      [&](Arrays& arrays) {
        Call call = packed(arrays);
        if (arrays.memory() == Memory::kHost) {
          call.inputs.cu_seqlens_q = starts_q;
          call.inputs.cu_seqlens_k = starts_k;
        }
        return call;
      },
      after_numbers);
}

}  // namespace
}  // namespace qkv::test
