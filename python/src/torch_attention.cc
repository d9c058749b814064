// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <optional>

#include <qkv/attention.h>
#include <qkv/error.h>

#include "areas.h"
#include "call.h"
#include "dlpack.h"
#include "torch_tensor.h"

// A short path for the most common call of PyTorch programs, attention of three tensors without
// gradients. The arguments are read here, since reading them in Python takes as long as the
// attention of a small call.
namespace qkv::python {
namespace {

// The largest scale that float32 holds; calls with larger ones take the general path.
constexpr double kLargestScale = std::numeric_limits<float>::max();

bool is_python_bool(nb::handle object) { return PyBool_Check(object.ptr()) != 0; }

bool is_zero(nb::handle object) {
  if (PyFloat_CheckExact(object.ptr()) != 0) return PyFloat_AsDouble(object.ptr()) == 0;
  return PyLong_CheckExact(object.ptr()) != 0 && PyObject_IsTrue(object.ptr()) == 0;
}

bool read_scale(nb::handle object, std::optional<double>& scale) {
  if (object.is_none()) return true;
  if (PyFloat_CheckExact(object.ptr()) == 0) return false;
  scale = PyFloat_AsDouble(object.ptr());
  return -kLargestScale <= *scale && *scale <= kLargestScale;
}

// Reads q [B,H,Tq,D], k [B,G,Tk,D] and v [B,G,Tk,E]: one real dtype, no empty axis, G = H or, with
// `shared`, a divisor of H. Returns false for other tensors.
bool read_heads(nb::handle query, nb::handle key, nb::handle value, bool shared, Inputs& inputs) {
  const auto q = view_of_bare_tensor(query);
  if (!q || q->rank() != 4 || !is_real(q->dtype())) return false;
  const auto k = view_of_bare_tensor(key), v = view_of_bare_tensor(value);
  if (!k || !v || k->rank() != 4 || v->rank() != 4) return false;
  if (k->dtype() != q->dtype() || v->dtype() != q->dtype()) return false;
  const bool fits = q->size(0) == k->size(0) && q->size(3) == k->size(3) &&
                    k->size(0) == v->size(0) && k->size(1) == v->size(1) &&
                    k->size(2) == v->size(2);
  if (!fits || q->element_count() == 0 || v->element_count() == 0) return false;
  if (shared ? q->size(1) % k->size(1) != 0 : q->size(1) != k->size(1)) return false;
  inputs.q = *q;
  inputs.k = *k;
  inputs.v = *v;
  return true;
}

// Reads a mask that broadcasts to the scores: booleans, true where a query may attend, or numbers
// of q's type that are added. Returns false for other objects.
bool read_mask(nb::handle object, const Inputs& inputs, Options& options) {
  const auto mask = view_of_bare_tensor(object);
  if (!mask || mask->rank() > 4) return false;
  const Index scores[] = {inputs.q.size(0), inputs.q.size(1), inputs.q.size(2), inputs.k.size(2)};
  for (int axis = 1; axis <= mask->rank(); ++axis) {
    const Index size = mask->size(mask->rank() - axis);
    if (size != 1 && size != scores[4 - axis]) return false;
  }
  if (mask->dtype() == DType::kBool) {
    options.masks.emplace_back(Keep{*mask});
    return true;
  }
  options.bias = *mask;
  return mask->dtype() == inputs.q.dtype();
}

// Computes torch.nn.functional.scaled_dot_product_attention. Returns None, so that the caller takes
// the general path, if an argument is of a kind not read here or attention() throws Error.
nb::object torch_attention(nb::handle query, nb::handle key, nb::handle value, nb::handle attn_mask,
                           nb::handle dropout_p, nb::handle is_causal, nb::handle scale,
                           nb::handle enable_gqa) {
  Inputs inputs;
  Options options;
  if (!is_zero(dropout_p) || !is_python_bool(is_causal) || !is_python_bool(enable_gqa) ||
      !read_scale(scale, options.scale) ||
      !read_heads(query, key, value, enable_gqa.is(Py_True), inputs) || has_tangents()) {
    return nb::none();
  }
  if (is_causal.is(Py_True)) {
    if (!attn_mask.is_none()) return nb::none();
    options.masks.emplace_back(Causal{});
    options.diagonal = TopLeft{};
  }
  if (!attn_mask.is_none() && !read_mask(attn_mask, inputs, options)) return nb::none();
  const ConstView &q = inputs.q, &v = inputs.v;
  Outputs outputs;
  nb::object out = tensor_by(*tensor_class_of(query).exchange, q.dtype(),
                             {q.size(0), q.size(1), q.size(2), v.size(3)}, outputs.out);
  const auto q_numbers = static_cast<double>(q.element_count());
  // Multiply-adds of both products.
  const double work = q_numbers * v.size(2) * (1 + static_cast<double>(v.size(3)) / q.size(3));
  try {
    run_call(threads_of("attention", nb::none()), work,
             [&](Context& context) { attention(inputs, options, outputs, context); });
  } catch (const Error&) {
    return nb::none();
  }
  return out;
}

}  // namespace

void bind_torch_attention(nb::module_& module) {
  const auto or_none = nb::arg().none();
  module.def("torch_attention", torch_attention, or_none, or_none, or_none, or_none, or_none,
             or_none, or_none, or_none);
}

}  // namespace qkv::python
