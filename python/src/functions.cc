// SPDX-License-Identifier: Apache-2.0
#include <qkv/attention.h>
#include <qkv/q8.h>
#include <qkv/softmax.h>
#include <qkv/tensor.h>

#include "areas.h"
#include "arguments.h"
#include "call.h"
#include "numpy.h"
#include "results.h"
#include "view_parts.h"

namespace qkv::python {
namespace {

double count(const ConstView& x) { return static_cast<double>(x.element_count()); }

Work work_of(const ConstView& x) { return {20 * count(x), count(x)}; }

// The NumPy array of an object that is no array but can become one: a list, range or another
// sequence of numbers, which count as float64, or an object with __array__. Returns null for
// others.
nb::object array_made_of(nb::handle x, const Name& name) {
  const bool is_text = nb::isinstance<nb::str>(x);
  if (numpy().is_array(x) || is_text || nb::hasattr(x, "__dlpack__")) return {};
  if (PyObject_CheckBuffer(x.ptr()) != 0) return {};
  if (nb::hasattr(x, "__array__")) return numpy().as_array(x);
  if (PySequence_Check(x.ptr()) == 0) return {};
  return array_or_sequence(nb::list(nb::borrow(x)), name, DType::kFloat64).owner;
}

// An argument of a function of arrays, which may be a list, and the object that results are like:
// the argument itself, or the array that array_made_of() makes of it.
struct Argument {
  nb::object like;
  Array array;
  bool is_list = false;  // a sequence of numbers, which has no dtype of its own

  Argument(nb::handle x, const Name& name) : like(array_made_of(x, name)) {
    is_list = like.is_valid() && !nb::hasattr(x, "__array__");
    if (!like.is_valid()) like = nb::borrow(x);
    array = array_of(like, name);
  }
  void check_given(const Name& name) const {
    if (!array.view.given()) throw_value_error(name, "is absent");
  }
};

// The axis `dim` counted from 0; -1 for an array without axes, which the library refuses.
int axis_of(nb::handle dim, const ConstView& x) {
  const Name name{"softmax", "dim"};
  const Index axis = index_of(dim, name);
  const Index rank = x.rank();
  if (rank == 0) return -1;
  if (axis >= -rank && axis < rank) return static_cast<int>(axis < 0 ? axis + rank : axis);
  throw_value_error(name, "must be in " + std::to_string(-rank) + " to " +
                              std::to_string(rank - 1) + ", got " + std::to_string(axis) + " (x " +
                              qkv::describe(x) + ")");
}

nb::object softmax_call(nb::handle x, nb::handle dim, nb::handle threads) {
  const Name name{"softmax", "x"};
  const int workers = threads_of(name.function, threads);
  const Argument argument(x, name);
  argument.check_given(name);
  const Array& array = argument.array;
  const int axis = axis_of(dim, array.view);
  View out;
  const ResultMaker maker(argument.like);
  const nb::object made = maker.make(array.view.dtype(), array.view.shape(), out);
  const bool is_last = axis == array.view.rank() - 1;
  const ConstView rows = is_last ? array.view : transpose(array.view, axis, -1);
  const View to = is_last ? out : transpose(out, axis, -1);
  run_call(workers, work_of(array.view), [&](Context& context) { softmax(rows, to, context); });
  return maker.finish(made);
}

nb::object masked_softmax_call(nb::handle x, nb::handle valid_len, nb::handle threads) {
  constexpr const char* kFunction = "masked_softmax";
  const int workers = threads_of(kFunction, threads);
  const Name name{kFunction, "x"};
  const Argument argument(x, name);
  argument.check_given(name);
  const Array& array = argument.array;
  const Array lengths =
      array_or_sequence(valid_len, {kFunction, "valid_len", kIntegers}, DType::kNone);
  View out;
  const ResultMaker maker(argument.like);
  const nb::object made = maker.make(array.view.dtype(), array.view.shape(), out);
  run_call(workers, work_of(array.view),
           [&](Context& context) { masked_softmax(array.view, lengths.view, out, context); });
  return maker.finish(made);
}

// The shape of the product a b. For inputs that do not fit together the shape is arbitrary, because
// the library then throws an error.
Dims product_shape(const ConstView& a, const ConstView& b, Transpose ta, Transpose tb) {
  const int rank = std::max(a.rank(), b.rank());
  if (a.rank() < 2 || b.rank() < 2) return {};
  Dims shape;
  for (int from_end = rank; from_end > 2; --from_end) {
    const Index of_a = from_end <= a.rank() ? a.size(-from_end) : 1;
    const Index of_b = from_end <= b.rank() ? b.size(-from_end) : 1;
    shape.push_back(of_a == 1 ? of_b : of_a);
  }
  shape.push_back(a.size(ta == Transpose::kYes ? -1 : -2));
  shape.push_back(b.size(tb == Transpose::kYes ? -2 : -1));
  return shape;
}

// Converts the numbers of a list to the dtype of `other`, if that is real and not float64. Returns
// the tensor that holds the converted numbers, of which `of_list` becomes a view.
Tensor take_dtype(ConstView& of_list, const ConstView& other) {
  const DType dtype = other.dtype();
  if (!is_real(dtype) || of_list.dtype() != DType::kFloat64 || dtype == DType::kFloat64) return {};
  Tensor converted = convert(of_list, dtype);
  of_list = converted.view();
  return converted;
}

nb::object batch_dot_call(nb::handle a, nb::handle b, nb::handle transpose_a,
                          nb::handle transpose_b, nb::handle threads) {
  constexpr const char* kFunction = "batch_dot";
  const int workers = threads_of(kFunction, threads);
  Argument of_a(a, {kFunction, "a"});
  Argument of_b(b, {kFunction, "b"});
  of_a.check_given({kFunction, "a"});
  of_b.check_given({kFunction, "b"});
  Tensor converted;
  if (of_a.is_list && !of_b.is_list) converted = take_dtype(of_a.array.view, of_b.array.view);
  if (of_b.is_list && !of_a.is_list) converted = take_dtype(of_b.array.view, of_a.array.view);
  const Array &left = of_a.array, &right = of_b.array;
  const auto transpose = [&](nb::handle flag, const char* name) {
    return flag_of(flag, {kFunction, name}) ? Transpose::kYes : Transpose::kNo;
  };
  const Transpose ta = transpose(transpose_a, "transpose_a");
  const Transpose tb = transpose(transpose_b, "transpose_b");
  const Dims shape = product_shape(left.view, right.view, ta, tb);
  View out;
  const ResultMaker maker(of_a.is_list ? of_b.like : of_a.like);
  const nb::object made = maker.make(left.view.dtype(), shape, out);
  double products = count(out);
  if (left.view.rank() >= 2) {
    products *= static_cast<double>(left.view.size(ta == Transpose::kYes ? -2 : -1));
  }
  run_call(workers, {products, count(left.view) + count(right.view) + count(out)},
           [&](Context& context) { batch_dot(left.view, right.view, out, ta, tb, context); });
  return maker.finish(made);
}

nb::tuple merge_call(nb::handle out, nb::handle lse, nb::handle out2, nb::handle lse2) {
  const auto array = [&](nb::handle x, const char* argument) {
    const Name name{"merge", argument};
    Array made = array_of(x, name);
    if (!made.view.given()) throw_value_error(name, "is absent");
    return made;
  };
  const Array values = array(out, "out"), sums = array(lse, "lse");
  const Array values2 = array(out2, "out2"), sums2 = array(lse2, "lse2");
  View to, to_lse;
  const ResultMaker maker(out);
  const nb::object made = maker.make(values.view.dtype(), values.view.shape(), to);
  const nb::object made_lse = maker.make(sums.view.dtype(), sums.view.shape(), to_lse);
  run_call(1, {0, 3 * count(values.view)}, [&](Context&) {
    copy(values.view, to);
    copy(sums.view, to_lse);
    merge(to, to_lse, values2.view, sums2.view);
  });
  return nb::make_tuple(maker.finish(made), maker.finish(made_lse));
}

// Returns a NumPy array, whatever package x is from, because only NumPy can have the dtype q8. The
// library throws an error if the size of the last axis is not a multiple of 32.
nb::object quantize_q8_call(nb::handle x) {
  const Name name{"quantize_q8", "x", "float32, bfloat16 or float16"};
  const Array array = array_of(x, name);
  if (!array.view.given()) throw_value_error(name, "is absent");
  Dims shape = array.view.shape();
  if (shape.rank() > 0) shape[shape.rank() - 1] /= BlockQ8::kNumbers;
  View out;
  nb::object made = numpy().empty(DType::kQ8, shape, out);
  run_call(1, {0, count(array.view)},
           [&](Context& context) { quantize_q8(array.view, out, context); });
  return made;
}

nb::object dequantize_q8_call(nb::handle x) {
  const Name name{"dequantize_q8", "x", "of the dtype q8"};
  const Array array = array_of(x, name);
  if (!array.view.given()) throw_value_error(name, "is absent");
  if (array.view.dtype() != DType::kQ8) refuse_dtype(name, x);
  if (array.view.rank() == 0) throw_value_error(name, "must have the shape [..,D/32], got []");
  Dims shape = array.view.shape();
  shape[shape.rank() - 1] *= BlockQ8::kNumbers;
  View out;
  nb::object made = numpy().empty(DType::kFloat32, shape, out);
  run_call(1, {0, count(out)}, [&](Context& context) { dequantize_q8(array.view, out, context); });
  return made;
}

}  // namespace

void bind_functions(nb::module_& module) {
  module.def("quantize_q8", quantize_q8_call, nb::arg().none());
  module.def("dequantize_q8", dequantize_q8_call, nb::arg().none());
  module.def("merge", merge_call, nb::arg().none(), nb::arg().none(), nb::arg().none(),
             nb::arg().none());
  module.def("softmax", softmax_call, nb::arg().none(), nb::arg().none(), nb::arg().none());
  module.def("masked_softmax", masked_softmax_call, nb::arg().none(), nb::arg().none(),
             nb::arg().none());
  module.def("batch_dot", batch_dot_call, nb::arg().none(), nb::arg().none(), nb::arg().none(),
             nb::arg().none(), nb::arg().none());
}

}  // namespace qkv::python
