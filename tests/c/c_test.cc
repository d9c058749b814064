// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/c.h>

#include "c/last_error.h"
#include "c/structs.h"
#include "tests/c/small_call.h"
#include "tests/support/allocations.h"
#include "tests/support/errors.h"
#include "tests/support/touched.h"

// Tests of the statuses, messages, sizes of structs, contexts and plans of qkv/c.h.
namespace qkv::test {
namespace {

std::string name_of(qkv_status status) { return qkv_status_name(status); }

// ---- version and errors ---------------------------------------------------------------------

TEST(C, HasAVersion) {
  EXPECT_STREQ(qkv_version(), QKV_VERSION);
  EXPECT_EQ(qkv_version_number(), QKV_VERSION_NUMBER);
  const int number = QKV_VERSION_NUMBER;
  EXPECT_EQ(std::to_string(number / 10000) + "." + std::to_string(number / 100 % 100) + "." +
                std::to_string(number % 100),
            QKV_VERSION);
}

TEST(C, NamesStatuses) {
  EXPECT_EQ(name_of(QKV_OK), "QKV_OK");
  EXPECT_EQ(name_of(QKV_INVALID_ARGUMENT), "QKV_INVALID_ARGUMENT");
  EXPECT_EQ(name_of(QKV_INVALID_TYPE), "QKV_INVALID_TYPE");
  EXPECT_EQ(name_of(QKV_OUT_OF_MEMORY), "QKV_OUT_OF_MEMORY");
  EXPECT_EQ(name_of(QKV_STOPPED), "QKV_STOPPED");
  EXPECT_EQ(name_of(QKV_INTERNAL_ERROR), "QKV_INTERNAL_ERROR");
  EXPECT_EQ(name_of(static_cast<qkv_status>(6)), "unknown");
}

TEST(C, KeepsAMessageForEachThread) {
  SmallCall call;
  std::thread([] { EXPECT_STREQ(qkv_last_error(), ""); }).join();
  call.options.causal = 2;
  EXPECT_EQ(call.forward(), QKV_INVALID_ARGUMENT);
  const std::string message = "attention: causal must be 0 or 1, got 2";
  EXPECT_EQ(qkv_last_error(), message);
  std::thread([] {
    SmallCall other;
    other.options.score = 9;
    EXPECT_EQ(other.forward(), QKV_INVALID_ARGUMENT);
    EXPECT_STREQ(qkv_last_error(), "attention: score must be a qkv_score, got 9");
  }).join();
  call.options.causal = 1;
  EXPECT_EQ(call.forward(), QKV_OK);
  EXPECT_EQ(qkv_last_error(), message);
}

TEST(C, CutsALongMessageBetweenCharacters) {
  SmallCall call;
  qkv_context* context = nullptr;
  ASSERT_EQ(qkv_context_create(1, &context), QKV_OK);
  for (const std::size_t before : {0, 1, 2}) {
    std::string path(before, 'a');
    for (int n = 0; n < 1000; ++n) path += "\u20ac";  // three bytes
    ASSERT_EQ(qkv_context_force_path(context, path.c_str()), QKV_OK);
    EXPECT_EQ(call.forward(context), QKV_INVALID_ARGUMENT);
    const std::string message = qkv_last_error();
    const std::string start = "attention: context forces the path \"" + std::string(before, 'a');
    EXPECT_TRUE(message.starts_with(start)) << message;
    EXPECT_LE(message.size(), 1023U);
    EXPECT_GE(message.size(), 1020U);
    EXPECT_EQ((message.size() - start.size()) % 3, 0U);
  }
  qkv_context_destroy(context);
}

template <class Exception>
std::string reported(const Exception& exception) {
  const qkv_status status = c::guarded("attention", [&] { throw exception; });
  return name_of(status) + " " + qkv_last_error();
}

TEST(C, TurnsExceptionsIntoStatuses) {
  EXPECT_EQ(reported(Error("f", "x", "is wrong")), "QKV_INVALID_ARGUMENT f: x is wrong");
  EXPECT_EQ(reported(Error("f", "x", "is wrong", ErrorKind::kType)),
            "QKV_INVALID_TYPE f: x is wrong");
  EXPECT_EQ(reported(Cancelled("f")), "QKV_STOPPED f: cancelled by the context's stop flag");
  EXPECT_EQ(reported(std::bad_alloc()), "QKV_OUT_OF_MEMORY attention: out of memory");
  EXPECT_EQ(reported(std::runtime_error("strange")), "QKV_INTERNAL_ERROR attention: strange");
  EXPECT_EQ(reported(std::runtime_error(std::string(3000, 'x'))),
            "QKV_INTERNAL_ERROR attention: " + std::string(1023 - 11, 'x'));
  EXPECT_EQ(reported(1), "QKV_INTERNAL_ERROR attention: an exception of unknown type");
  EXPECT_EQ(c::guarded("f", [] {}), QKV_OK);
}

// The additive score needs memory for projections of all keys, here 2^45 keys.
TEST(C, ReportsThatMemoryIsShort) {
  SmallCall call;
  for (qkv_tensor* x : {&call.inputs.k, &call.inputs.v}) {
    x->sizes[2] = std::int64_t{1} << 45;
    x->strides[2] = 0;
  }
  const std::array<std::int64_t, 2> matrix{4, 4};
  std::array<float, 16> ones;
  ones.fill(1);
  call.options.score = QKV_ADDITIVE;
  for (qkv_tensor* x : {&call.options.additive.wq, &call.options.additive.wk}) {
    ASSERT_EQ(qkv_tensor_init(x, ones.data(), QKV_FLOAT32, 2, matrix.data()), QKV_OK);
  }
  ASSERT_EQ(qkv_tensor_init(&call.options.additive.v, ones.data(), QKV_FLOAT32, 1, matrix.data()),
            QKV_OK);
  EXPECT_EQ(name_of(call.forward()), "QKV_OUT_OF_MEMORY");
  EXPECT_STREQ(qkv_last_error(), "attention: out of memory");
  qkv_plan* plan = nullptr;
  EXPECT_EQ(qkv_plan_create(&call.inputs, &call.options, nullptr, &plan), QKV_OUT_OF_MEMORY);
  EXPECT_EQ(plan, nullptr);
}

// ---- null pointers --------------------------------------------------------------------------

// The message of a call that must be refused.
std::string refused(qkv_status status) {
  EXPECT_EQ(status, QKV_INVALID_ARGUMENT);
  return qkv_last_error();
}

TEST(C, RefusesNullPointers) {
  const SmallCall x;
  const auto& [in, o, to] = std::tie(x.inputs, x.options, x.outputs);
  EXPECT_EQ(refused(qkv_attention(nullptr, &o, &to, nullptr)),
            "attention: inputs is a null pointer");
  EXPECT_EQ(refused(qkv_attention(&in, &o, nullptr, nullptr)),
            "attention: outputs is a null pointer");
  const std::string backward = "attention_backward: ";
  EXPECT_EQ(refused(qkv_attention_backward(&in, &o, nullptr, &x.from, &x.to, nullptr)),
            backward + "saved is a null pointer");
  EXPECT_EQ(refused(qkv_attention_backward(&in, &o, &x.saved, nullptr, &x.to, nullptr)),
            backward + "output_gradients is a null pointer");
  EXPECT_EQ(refused(qkv_attention_backward(&in, &o, &x.saved, &x.from, nullptr, nullptr)),
            backward + "input_gradients is a null pointer");
  qkv_plan* plan = nullptr;
  EXPECT_EQ(refused(qkv_plan_create(nullptr, &o, nullptr, &plan)),
            "Plan: inputs is a null pointer");
  EXPECT_EQ(refused(qkv_plan_create(&in, &o, nullptr, nullptr)), "Plan: plan is a null pointer");
  EXPECT_EQ(refused(qkv_plan_run(nullptr, &in, &to)), "Plan::run: plan is a null pointer");
  EXPECT_EQ(refused(qkv_plan_backward(nullptr, &in, &x.saved, &x.from, &x.to)),
            "Plan::backward: plan is a null pointer");
  EXPECT_EQ(refused(qkv_merge(&to.out, nullptr, &to.out, &to.lse)), "merge: lse is a null pointer");
  EXPECT_EQ(refused(qkv_result_shapes_of(&in, nullptr)), "result_shapes: shapes is a null pointer");
  EXPECT_EQ(refused(qkv_inputs_init(nullptr, sizeof in)),
            "qkv_inputs_init: inputs is a null pointer");
  EXPECT_EQ(refused(qkv_context_create(1, nullptr)),
            "qkv_context_create: context is a null pointer");
  EXPECT_EQ(refused(qkv_context_force_path(nullptr, "reference")),
            "qkv_context_force_path: context is a null pointer");
}

TEST(C, AcceptsNullWhereTheHeaderSaysSo) {
  const SmallCall x;
  EXPECT_EQ(qkv_attention(&x.inputs, nullptr, &x.outputs, nullptr), QKV_OK);
  qkv_context_destroy(nullptr);
  qkv_context_set_stop(nullptr, 1);
  qkv_context_release_scratch(nullptr);
  EXPECT_EQ(qkv_context_scratch_bytes(nullptr), 0U);
  qkv_plan_destroy(nullptr);
  EXPECT_STREQ(qkv_plan_path(nullptr), "");
  EXPECT_STREQ(qkv_plan_backward_path(nullptr), "");
  EXPECT_EQ(qkv_plan_scratch_bytes(nullptr), 0U);
  EXPECT_EQ(qkv_plan_backward_scratch_bytes(nullptr), 0U);
}

// ---- arrays ---------------------------------------------------------------------------------

TEST(TensorInC, IsInCOrder) {
  double data[24];
  const std::array<std::int64_t, 3> sizes{2, 3, 4};
  qkv_tensor x;
  ASSERT_EQ(qkv_tensor_init(&x, data, QKV_FLOAT64, 3, sizes.data()), QKV_OK);
  EXPECT_EQ(x.data, data);
  EXPECT_EQ(x.dtype, QKV_FLOAT64);
  EXPECT_EQ(x.rank, 3);
  const std::array<std::int64_t, 8> all_sizes{2, 3, 4}, all_strides{12, 4, 1};
  EXPECT_EQ(std::to_array(x.sizes), all_sizes);
  EXPECT_EQ(std::to_array(x.strides), all_strides);
  EXPECT_EQ(qkv_tensor_init(&x, data, QKV_FLOAT64, 0, nullptr), QKV_OK);
}

TEST(TensorInC, RefusesInvalidArguments) {
  double data[24];
  const std::array<std::int64_t, 2> sizes{2, 3}, huge{std::int64_t{1} << 62, 4}, negative{2, -3},
      many_bytes{std::int64_t{1} << 31, std::int64_t{1} << 30}, none{0, std::int64_t{1} << 62};
  qkv_tensor x{};
  EXPECT_EQ(refused(qkv_tensor_init(nullptr, data, QKV_FLOAT64, 2, sizes.data())),
            "qkv_tensor_init: tensor is a null pointer");
  EXPECT_EQ(refused(qkv_tensor_init(&x, data, QKV_FLOAT64, 9, sizes.data())),
            "qkv_tensor_init: rank must be 0 to 8, got 9");
  EXPECT_EQ(refused(qkv_tensor_init(&x, data, QKV_FLOAT64, 2, nullptr)),
            "qkv_tensor_init: sizes is a null pointer");
  EXPECT_EQ(refused(qkv_tensor_init(&x, nullptr, QKV_FLOAT64, 2, sizes.data())),
            "qkv_tensor_init: data is null but the shape [2,3] has elements");
  EXPECT_EQ(refused(qkv_tensor_init(&x, data, QKV_FLOAT64, 2, negative.data())),
            "qkv_tensor_init: sizes must be 0 or more on each axis, got [2,-3]");
  EXPECT_EQ(refused(qkv_tensor_init(&x, data, QKV_FLOAT64, 2, huge.data())),
            "qkv_tensor_init: sizes may have at most 2^63 - 1 elements (sizes of 0 counted as 1), "
            "got [4611686018427387904,4]");
  EXPECT_EQ(refused(qkv_tensor_init(&x, data, QKV_FLOAT64, 2, many_bytes.data())),
            "qkv_tensor_init: sizes must take at most 2^63 - 1 bytes, got float64 "
            "[2147483648,1073741824]");
  EXPECT_EQ(qkv_tensor_init(&x, data, QKV_FLOAT32, 2, none.data()), QKV_OK);
  x = {};
  EXPECT_EQ(qkv_tensor_init(&x, data, QKV_NONE, 2, sizes.data()), QKV_INVALID_TYPE);
  EXPECT_STREQ(qkv_last_error(), "qkv_tensor_init: dtype must be a qkv_dtype, got 0");
  EXPECT_EQ(qkv_tensor_init(&x, data, 15, 2, sizes.data()), QKV_INVALID_TYPE);
  EXPECT_STREQ(qkv_last_error(), "qkv_tensor_init: dtype must be a qkv_dtype, got 15");
  EXPECT_EQ(x.dtype, QKV_NONE);
}

// ---- sizes of structs -----------------------------------------------------------------------

TEST(StructSize, IsChecked) {
  SmallCall call;
  const std::string size = std::to_string(sizeof(qkv_options));
  const std::string rule = "must be sizeof the struct, here " + size +
                           ", a multiple of 8 up to 16384 and never below 2584, got ";
  for (const std::size_t wrong : {std::size_t{0}, std::size_t{8}, std::size_t{2576},
                                  sizeof(qkv_options) + 4, std::size_t{1} << 40}) {
    call.options.struct_size = wrong;
    EXPECT_EQ(refused(call.forward()),
              "attention: options.struct_size " + rule + std::to_string(wrong) +
                  (wrong == 0 ? ": call the struct's init function first" : ""));
    qkv_options options;
    EXPECT_EQ(refused(qkv_options_init(&options, wrong)),
              "qkv_options_init: struct_size " + rule + std::to_string(wrong));
  }
}

// A struct of a later version of qkv/c.h, with one more field.
template <class T>
struct Newer {
  T known;
  std::int64_t more;
};

TEST(StructSize, OfANewerHeaderIsAccepted) {
  SmallCall call;
  Newer<qkv_options> options;
  options.more = -1;
  auto* const known = reinterpret_cast<qkv_options*>(&options);
  ASSERT_EQ(qkv_options_init(known, sizeof options), QKV_OK);
  EXPECT_EQ(known->struct_size, sizeof options);
  EXPECT_EQ(options.more, 0);
  EXPECT_EQ(known->rotary.base, 10000);
  EXPECT_EQ(known->window.right, -1);
  known->causal = 1;
  EXPECT_EQ(qkv_attention(&call.inputs, known, &call.outputs, nullptr), QKV_OK);
  const auto out = call.out;
  call.options.causal = 1;
  EXPECT_EQ(call.forward(), QKV_OK);
  EXPECT_EQ(call.out, out);

  options.more = 256;
  EXPECT_EQ(refused(qkv_attention(&call.inputs, known, &call.outputs, nullptr)),
            "attention: options has a field that version " QKV_VERSION " does not know: byte " +
                std::to_string(sizeof(qkv_options) + 1) + " of " + std::to_string(sizeof options) +
                " is not 0");
}

// A struct whose first version had 16 bytes, as if from an older header. No struct of qkv/c.h has
// an older version: 0.1 is the first.
struct Growing {
  std::size_t struct_size;
  std::int64_t first;
  std::int64_t second;  // since the second version; 7 by default
};

TEST(StructSize, OfAnOlderHeaderHasDefaults) {
  const c::Sized sized{"f", "x", sizeof(Growing), 16};
  const std::array<std::int64_t, 3> older{16, 5, 99};  // 99 is beyond the older struct
  Growing read{sizeof read, 0, 7};
  c::copy_known(sized, older.data(), &read);
  EXPECT_EQ(read.first, 5);
  EXPECT_EQ(read.second, 7);
  const std::array<std::int64_t, 3> present{24, 5, 99};
  c::copy_known(sized, present.data(), &read);
  EXPECT_EQ(read.second, 99);
  const std::array<std::int64_t, 3> short_one{8, 5, 99};
  EXPECT_EQ(error_of([&] { c::copy_known(sized, short_one.data(), &read); }),
            "f: x.struct_size must be sizeof the struct, here 24, a multiple of 8 up to 16384 and "
            "never below 16, got 8");

  // Nothing is written beyond the end of an older struct.
  const Growing newest{sizeof newest, 3, 4};
  std::array<std::int64_t, 3> to{0, 0, 99};
  c::copy_out(&newest, sizeof newest, to.data(), 16);
  EXPECT_EQ(to, (std::array<std::int64_t, 3>{16, 3, 99}));
}

// `first` is the struct's size in version 0.1.
template <class T>
void expect_first_size(qkv_status (*init)(T*, std::size_t) noexcept, std::size_t first) {
  T made;
  EXPECT_EQ(init(&made, first), QKV_OK) << qkv_last_error();
  EXPECT_EQ(made.struct_size, first);
  const std::string message = refused(init(&made, first - 8));
  EXPECT_TRUE(message.ends_with(" and never below " + std::to_string(first) + ", got " +
                                std::to_string(first - 8)))
      << message;
}

TEST(StructSize, IsThatOfTheFirstVersionOrMore) {
  expect_first_size(qkv_inputs_init, 1056);
  expect_first_size(qkv_options_init, 2584);
  expect_first_size(qkv_outputs_init, 2896);
  expect_first_size(qkv_result_shapes_init, 296);
  expect_first_size(qkv_saved_init, 296);
  expect_first_size(qkv_output_gradients_init, 584);
  expect_first_size(qkv_input_gradients_init, 1888);
}

TEST(ResultShapesInC, AreThoseOfCpp) {
  SmallCall call;
  call.inputs.k.sizes[2] = call.inputs.v.sizes[2] = 2;
  Newer<qkv_result_shapes> shapes;
  shapes.more = -1;
  auto* const known = reinterpret_cast<qkv_result_shapes*>(&shapes);
  ASSERT_EQ(qkv_result_shapes_init(known, sizeof shapes), QKV_OK);
  ASSERT_EQ(qkv_result_shapes_of(&call.inputs, known), QKV_OK) << qkv_last_error();
  EXPECT_EQ(known->struct_size, sizeof shapes);
  EXPECT_EQ(shapes.more, 0);
  const auto expect_shape = [](const qkv_shape& shape, std::vector<std::int64_t> sizes) {
    EXPECT_EQ(shape.rank, static_cast<std::int64_t>(sizes.size()));
    sizes.resize(QKV_MAX_RANK);
    EXPECT_EQ(std::vector(std::begin(shape.sizes), std::end(shape.sizes)), sizes);
  };
  expect_shape(known->out, {1, 2, 3, 4});
  expect_shape(known->rows, {1, 2, 3});
  expect_shape(known->keys, {1, 2, 2});
  expect_shape(known->matrix, {1, 2, 3, 2});
  call.inputs.k.rank = 1;
  EXPECT_EQ(refused(qkv_result_shapes_of(&call.inputs, known)),
            "attention: k must have rank 2 or more, got float32 [1]");
}

// ---- contexts -------------------------------------------------------------------------------

struct DestroyContext {
  void operator()(qkv_context* context) const { qkv_context_destroy(context); }
};
using OwnedContext = std::unique_ptr<qkv_context, DestroyContext>;

OwnedContext context_of(std::int32_t threads) {
  qkv_context* context = nullptr;
  EXPECT_EQ(qkv_context_create(threads, &context), QKV_OK) << qkv_last_error();
  return OwnedContext(context);
}

TEST(ContextInC, HasThreadsAndMemory) {
  SmallCall call;
  ASSERT_EQ(call.forward(), QKV_OK);
  const auto out = call.out;
  for (const std::int32_t threads : {0, 1, 3}) {
    const OwnedContext context = context_of(threads);
    EXPECT_EQ(qkv_context_scratch_bytes(context.get()), 0U);
    call.out.fill(0);
    ASSERT_EQ(call.forward(context.get()), QKV_OK);
    EXPECT_EQ(call.out, out);
    EXPECT_GT(qkv_context_scratch_bytes(context.get()), 0U);
    qkv_context_release_scratch(context.get());
    EXPECT_EQ(qkv_context_scratch_bytes(context.get()), 0U);
  }
  qkv_context* none = nullptr;
  for (const std::int32_t wrong : {-1, 4097}) {
    none = reinterpret_cast<qkv_context*>(&call);
    EXPECT_EQ(qkv_context_create(wrong, &none), QKV_INVALID_ARGUMENT);
    EXPECT_NE(std::string(qkv_last_error()).find("got " + std::to_string(wrong)),
              std::string::npos);
    EXPECT_EQ(none, nullptr);
  }
}

TEST(ContextInC, ForcesAPath) {
  SmallCall call;
  const OwnedContext context = context_of(1);
  ASSERT_EQ(qkv_context_force_path(context.get(), "reference"), QKV_OK);
  qkv_plan* plan = nullptr;
  ASSERT_EQ(qkv_plan_create(&call.inputs, nullptr, context.get(), &plan), QKV_OK);
  EXPECT_STREQ(qkv_plan_path(plan), "reference");
  EXPECT_STREQ(qkv_plan_backward_path(plan), "reference");
  qkv_plan_destroy(plan);
  ASSERT_EQ(qkv_context_force_path(context.get(), "fastest"), QKV_OK);
  EXPECT_EQ(call.forward(context.get()), QKV_INVALID_ARGUMENT);
  EXPECT_TRUE(std::string(qkv_last_error())
                  .starts_with("attention: context forces the path \"fastest\"; valid: "));
  ASSERT_EQ(qkv_context_force_path(context.get(), ""), QKV_OK);
  EXPECT_EQ(call.forward(context.get()), QKV_OK);
}

TEST(ContextInC, StopsCallsUntilItIsReset) {
  SmallCall call;
  const OwnedContext context = context_of(1);
  ASSERT_EQ(call.forward(context.get()), QKV_OK);
  qkv_context_set_stop(context.get(), 1);
  EXPECT_EQ(name_of(call.forward(context.get())), "QKV_STOPPED");
  EXPECT_STREQ(qkv_last_error(), "attention: cancelled by the context's stop flag");
  EXPECT_EQ(name_of(call.backward(context.get())), "QKV_STOPPED");
  qkv_context_set_stop(context.get(), 0);
  EXPECT_EQ(call.forward(context.get()), QKV_OK);
}

// The call checks 2^50 key lengths, which would take days, until another thread stops it. The other
// thread waits until the call has read a key length.
TEST(ContextInC, StopsARunningCall) {
  SmallCall call;
  const std::int64_t many = std::int64_t{1} << 50;
  TouchedArray length(DType::kInt64, {1});  // holds 0
  for (qkv_tensor* x : {&call.inputs.q, &call.inputs.k, &call.inputs.v, &call.outputs.out}) {
    x->sizes[0] = many;
    x->strides[0] = 0;
  }
  call.inputs.q.sizes[2] = call.outputs.out.sizes[2] = 0;
  call.outputs.lse = {};
  ASSERT_EQ(qkv_tensor_init(&call.options.key_lengths, length.view().data(), QKV_INT64, 1,
                            std::array<std::int64_t, 1>{1}.data()),
            QKV_OK);
  call.options.key_lengths.sizes[0] = many;
  call.options.key_lengths.strides[0] = 0;
  const OwnedContext context = context_of(2);
  std::atomic<bool> is_read{false}, returned{false};
  std::thread stopper([&] {
    while (!is_read && !returned) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    qkv_context_set_stop(context.get(), 1);
  });
  {
    const TouchedArray::Watch watch(length, is_read);
    EXPECT_EQ(name_of(call.forward(context.get())), "QKV_STOPPED") << qkv_last_error();
  }
  EXPECT_TRUE(is_read);
  returned = true;
  stopper.join();
}

// ---- plans ----------------------------------------------------------------------------------

TEST(PlanInC, GivesTheBitsOfTheFunctions) {
  SmallCall call, planned;
  for (SmallCall* x : {&call, &planned}) {
    x->options.causal = 1;
    x->options.softcap = 5;
  }
  ASSERT_EQ(call.forward(), QKV_OK);
  ASSERT_EQ(call.backward(), QKV_OK);
  qkv_plan* plan = nullptr;
  OwnedContext context = context_of(2);
  ASSERT_EQ(qkv_plan_create(&planned.inputs, &planned.options, context.get(), &plan), QKV_OK);
  // The plan needs neither the options nor the handle of its context.
  std::memset(&planned.options, 0xFF, sizeof planned.options);
  context.reset();
  ASSERT_EQ(qkv_plan_run(plan, &planned.inputs, &planned.outputs), QKV_OK) << qkv_last_error();
  ASSERT_EQ(qkv_plan_backward(plan, &planned.inputs, &planned.saved, &planned.from, &planned.to),
            QKV_OK)
      << qkv_last_error();
  EXPECT_EQ(planned.out, call.out);
  EXPECT_EQ(planned.lse, call.lse);
  EXPECT_EQ(planned.dq, call.dq);
  EXPECT_GT(qkv_plan_scratch_bytes(plan), 0U);
  EXPECT_GT(qkv_plan_backward_scratch_bytes(plan), 0U);
  EXPECT_EQ(allocations_of([&] { qkv_plan_run(plan, &planned.inputs, &planned.outputs); }), 0);

  planned.inputs.q.sizes[2] = 2;
  EXPECT_EQ(refused(qkv_plan_run(plan, &planned.inputs, &planned.outputs)),
            "Plan::run: q is float32 [1,2,2,4] but was float32 [1,2,3,4] when the plan was made");
  qkv_plan_destroy(plan);
}

TEST(PlanInC, IsNullAfterAFailure) {
  SmallCall call;
  call.options.softcap = -1;
  auto* plan = reinterpret_cast<qkv_plan*>(&call);
  EXPECT_EQ(refused(qkv_plan_create(&call.inputs, &call.options, nullptr, &plan)),
            "Plan: softcap must be finite and 0 (off) or more, got -1");
  EXPECT_EQ(plan, nullptr);
}

// A call with keys in pages has no backward pass.
TEST(PlanInC, MayHaveNoBackwardPass) {
  std::vector<float> pages(16 * 4);
  std::array<float, 4> row{};
  std::array<std::int32_t, 1> table{0}, length{16};
  qkv_inputs inputs;
  ASSERT_EQ(qkv_inputs_init(&inputs, sizeof inputs), QKV_OK);
  const std::array<std::int64_t, 4> q{1, 1, 1, 4}, k{1, 16, 1, 4};
  ASSERT_EQ(qkv_tensor_init(&inputs.q, row.data(), QKV_FLOAT32, 4, q.data()), QKV_OK);
  ASSERT_EQ(qkv_tensor_init(&inputs.k, pages.data(), QKV_FLOAT32, 4, k.data()), QKV_OK);
  inputs.v = inputs.k;
  ASSERT_EQ(qkv_tensor_init(&inputs.block_tables, table.data(), QKV_INT32, 2, q.data()), QKV_OK);
  ASSERT_EQ(qkv_tensor_init(&inputs.context_lens, length.data(), QKV_INT32, 1, q.data()), QKV_OK);
  qkv_plan* plan = nullptr;
  ASSERT_EQ(qkv_plan_create(&inputs, nullptr, nullptr, &plan), QKV_OK) << qkv_last_error();
  EXPECT_STRNE(qkv_plan_path(plan), "");
  EXPECT_STREQ(qkv_plan_backward_path(plan), "");
  qkv_plan_destroy(plan);
}

}  // namespace
}  // namespace qkv::test
