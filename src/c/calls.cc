// SPDX-License-Identifier: Apache-2.0
// The version, arrays, contexts and calls of qkv/c.h.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include <qkv/attention.h>
#include <qkv/c.h>

#include "c/handles.h"
#include "c/last_error.h"
#include "c/reader.h"
#include "c/structs.h"
#include "core/integers.h"
#include "core/message.h"

namespace qkv::c {
namespace {

qkv_tensor c_order(void* data, std::int32_t dtype, std::int32_t rank, const std::int64_t* sizes) {
  constexpr std::string_view kFunction = "qkv_tensor_init";
  if (dtype == QKV_NONE) {
    throw Error(kFunction, "dtype", "must be a qkv_dtype, got 0", ErrorKind::kType);
  }
  if (sizes == nullptr && rank > 0) throw Error(kFunction, "sizes", "is a null pointer");
  qkv_tensor made{};
  made.data = data;
  made.dtype = dtype;
  made.rank = rank;
  // For a rank out of range `sizes` is not read; view() refuses the rank below.
  if (rank >= 0 && rank <= kMaxRank) std::copy_n(sizes, rank, made.sizes);
  const Reader reader(kFunction);
  // With strides of 0 everything is checked but the extent in bytes.
  const View checked = reader.view("", made);
  const auto size = static_cast<Index>(size_of(checked.dtype()));
  if (!core::checked_multiply(checked.element_count(), size)) {
    throw Error(kFunction, "sizes",
                core::text("must take at most 2^63 - 1 bytes, got ", describe(checked)));
  }
  const Dims strides = contiguous_strides(checked.shape());
  std::copy(strides.begin(), strides.end(), made.strides);
  reader.view("", made);
  return made;
}

qkv_shape shape_of(const Dims& dims) {
  qkv_shape shape{};
  shape.rank = dims.rank();
  std::copy(dims.begin(), dims.end(), shape.sizes);
  return shape;
}

}  // namespace
}  // namespace qkv::c

// The functions of C are in no namespace. This file is no header, but unity builds include it.
// NOLINTBEGIN(google-global-names-in-headers)
using qkv::Error;
using qkv::c::guarded;
using qkv::c::Reader;
// NOLINTEND(google-global-names-in-headers)

extern "C" {

// ---- version and errors ---------------------------------------------------------------------

const char* qkv_version(void) noexcept { return QKV_VERSION; }

int32_t qkv_version_number(void) noexcept { return QKV_VERSION_NUMBER; }

const char* qkv_status_name(qkv_status status) noexcept {
  switch (static_cast<int>(status)) {
    case QKV_OK:
      return "QKV_OK";
    case QKV_INVALID_ARGUMENT:
      return "QKV_INVALID_ARGUMENT";
    case QKV_INVALID_TYPE:
      return "QKV_INVALID_TYPE";
    case QKV_OUT_OF_MEMORY:
      return "QKV_OUT_OF_MEMORY";
    case QKV_STOPPED:
      return "QKV_STOPPED";
    case QKV_INTERNAL_ERROR:
      return "QKV_INTERNAL_ERROR";
    default:
      return "unknown";
  }
}

const char* qkv_last_error(void) noexcept { return qkv::c::last_error(); }

// ---- arrays ---------------------------------------------------------------------------------

qkv_status qkv_tensor_init(qkv_tensor* tensor, void* data, int32_t dtype, int32_t rank,
                           const int64_t* sizes) noexcept {
  return guarded("qkv_tensor_init", [&] {
    if (tensor == nullptr) throw Error("qkv_tensor_init", "tensor", "is a null pointer");
    *tensor = qkv::c::c_order(data, dtype, rank, sizes);
  });
}

// ---- contexts -------------------------------------------------------------------------------

qkv_status qkv_context_create(int32_t threads, qkv_context** context) noexcept {
  if (context != nullptr) *context = nullptr;
  return guarded("qkv_context_create", [&] {
    if (context == nullptr) throw Error("qkv_context_create", "context", "is a null pointer");
    auto made = std::make_unique<qkv_context>();
    made->shared = std::make_shared<qkv::c::StoppableContext>(qkv::Executor::threads(threads));
    *context = made.release();
  });
}

void qkv_context_destroy(qkv_context* context) noexcept { delete context; }

void qkv_context_set_stop(qkv_context* context, int32_t stop) noexcept {
  if (context != nullptr) context->shared->stop.store(stop != 0);
}

qkv_status qkv_context_force_path(qkv_context* context, const char* name) noexcept {
  constexpr std::string_view kFunction = "qkv_context_force_path";
  return guarded(kFunction, [&] {
    if (context == nullptr) throw Error(kFunction, "context", "is a null pointer");
    if (name == nullptr) throw Error(kFunction, "name", "is a null pointer");
    context->shared->context.force_path(name);
  });
}

size_t qkv_context_scratch_bytes(const qkv_context* context) noexcept {
  return context == nullptr ? 0 : context->shared->context.scratch_bytes();
}

void qkv_context_release_scratch(qkv_context* context) noexcept {
  if (context != nullptr) context->shared->context.release_scratch();
}

// ---- calls ----------------------------------------------------------------------------------

qkv_status qkv_result_shapes_of(const qkv_inputs* inputs, qkv_result_shapes* shapes) noexcept {
  constexpr std::string_view kFunction = "result_shapes";
  return guarded(kFunction, [&] {
    qkv_result_shapes made = qkv::c::whole(kFunction, "shapes", shapes);
    const qkv::ResultShapes from = qkv::result_shapes(Reader(kFunction).inputs(inputs));
    made.out = qkv::c::shape_of(from.out);
    made.rows = qkv::c::shape_of(from.rows);
    made.keys = qkv::c::shape_of(from.keys);
    made.matrix = qkv::c::shape_of(from.matrix);
    qkv::c::copy_out(&made, sizeof made, shapes, shapes->struct_size);
  });
}

qkv_status qkv_attention(const qkv_inputs* inputs, const qkv_options* options,
                         const qkv_outputs* outputs, qkv_context* context) noexcept {
  constexpr std::string_view kFunction = "attention";
  return guarded(kFunction, [&] {
    const Reader reader(kFunction);
    const qkv::Inputs its_inputs = reader.inputs(inputs);
    const qkv::Options its_options = reader.options(options);
    const qkv::Outputs its_outputs = reader.outputs(outputs);
    if (context == nullptr) {
      qkv::attention(its_inputs, its_options, its_outputs);
    } else {
      qkv::attention(its_inputs, its_options, its_outputs, context->shared->context);
    }
  });
}

qkv_status qkv_attention_backward(const qkv_inputs* inputs, const qkv_options* options,
                                  const qkv_saved* saved,
                                  const qkv_output_gradients* output_gradients,
                                  const qkv_input_gradients* input_gradients,
                                  qkv_context* context) noexcept {
  constexpr std::string_view kFunction = "attention_backward";
  return guarded(kFunction, [&] {
    const Reader reader(kFunction);
    const qkv::Inputs its_inputs = reader.inputs(inputs);
    const qkv::Options its_options = reader.options(options);
    const qkv::Saved its_saved = reader.saved(saved);
    const qkv::OutputGradients from = reader.output_gradients(output_gradients);
    const qkv::InputGradients to = reader.input_gradients(input_gradients);
    if (context == nullptr) {
      qkv::attention_backward(its_inputs, its_options, its_saved, from, to);
    } else {
      qkv::attention_backward(its_inputs, its_options, its_saved, from, to,
                              context->shared->context);
    }
  });
}

qkv_status qkv_merge(const qkv_tensor* out, const qkv_tensor* lse, const qkv_tensor* out2,
                     const qkv_tensor* lse2) noexcept {
  constexpr std::string_view kFunction = "merge";
  return guarded(kFunction, [&] {
    const auto view = [&](std::string_view name, const qkv_tensor* tensor) {
      if (tensor == nullptr) throw Error(kFunction, name, "is a null pointer");
      return Reader(kFunction).view(name, *tensor);
    };
    qkv::merge(view("out", out), view("lse", lse), view("out2", out2), view("lse2", lse2));
  });
}

}  // extern "C"
