// SPDX-License-Identifier: Apache-2.0
// Calls of functions that take arrays alone (tensors, views, copies, softmax, batch_dot), and of
// Executor.
#include <map>
#include <string>

#include <qkv/context.h>
#include <qkv/options.h>
#include <qkv/softmax.h>

#include "tests/errors/calls.h"

namespace qkv::test {
namespace {

int axis(Arguments& a, std::string_view name) { return static_cast<int>(a.whole(name, 0)); }

DType dtype(Arguments& a) { return parse_array(a.word("dtype") + "[]").dtype; }

Transpose transposed(Arguments& a, std::string_view name) {
  const std::string word = a.word(name);
  if (!word.empty() && word != "yes") throw TableError(std::string(name) + " is yes, or not given");
  return word.empty() ? Transpose::kNo : Transpose::kYes;
}

Call view(Arguments& a) {
  return [data = a.parts("data")] {
    View(data.first, data.second.dtype, data.second.shape, data.second.strides);
  };
}

Call tensor(Arguments& a) {
  return [type = dtype(a), shape = a.dims("shape")] { Tensor(type, shape); };
}

Call at(Arguments& a) {
  return [view = a.input("view"), index = a.dims("index")] { view.at<float>(index); };
}

Call as(Arguments& a) {
  return [view = a.input("view")] { view.as<float>(); };
}

Call slice_call(Arguments& a) {
  return [view = a.input("view"), axis = axis(a, "axis"), start = a.whole("start", 0),
          stop = a.whole("stop", 0),
          step = a.whole("step", 1)] { slice(view, axis, start, stop, step); };
}

Call permute_call(Arguments& a) {
  return [view = a.input("view"), axes = a.dims("axes")] { permute(view, axes); };
}

Call transpose_call(Arguments& a) {
  return [view = a.input("view"), first = axis(a, "axis_a"), second = axis(a, "axis_b")] {
    transpose(view, first, second);
  };
}

Call reshape_call(Arguments& a) {
  return [view = a.input("view"), shape = a.dims("shape")] { reshape(view, shape); };
}

Call broadcast_call(Arguments& a) {
  return [view = a.input("view"), shape = a.dims("shape")] { broadcast_to(view, shape); };
}

Call copy_call(Arguments& a) {
  return [source = a.input("source"), target = a.output("target")] { copy(source, target); };
}

Call contiguous_call(Arguments& a) {
  return [view = a.input("view")] { contiguous(view); };
}

Call convert_call(Arguments& a) {
  return [view = a.input("view"), type = dtype(a)] { convert(view, type); };
}

Call concat_call(Arguments& a) {
  return [w = a.input("w"), key_width = a.whole("key_width", 0), v = a.input("v")] {
    Additive::concat(w, key_width, v);
  };
}

Call softmax_call(Arguments& a) {
  return [x = a.input("x"), out = a.output("out")] { softmax(x, out); };
}

Call masked_softmax_call(Arguments& a) {
  return [x = a.input("x"), lengths = a.input("lengths"), out = a.output("out")] {
    masked_softmax(x, lengths, out);
  };
}

Call batch_dot_call(Arguments& a) {
  return [x = a.input("a"), y = a.input("b"), out = a.output("out"),
          transpose_x = transposed(a, "transpose_a"), transpose_y = transposed(a, "transpose_b")] {
    batch_dot(x, y, out, transpose_x, transpose_y);
  };
}

Call executor_threads(Arguments& a) {
  return [threads = axis(a, "threads")] { Executor::threads(threads); };
}

void run_all(void*, Index count, Executor::Body body, void* state) {
  for (Index n = 0; n < count; ++n) body(state, n);
}

Call executor(Arguments& a) {
  const bool null = a.word("parallel_for") == "null";
  return [null, concurrency = axis(a, "concurrency")] {
    Executor(null ? nullptr : &run_all, nullptr, concurrency);
  };
}

}  // namespace

Call prepare_arrays(Arguments& arguments) {
  static const std::map<std::string, Call (*)(Arguments&)> kCalls = {
      {"View", &view},
      {"View::at<float>", &at},
      {"View::as<float>", &as},
      {"Tensor", &tensor},
      {"slice", &slice_call},
      {"permute", &permute_call},
      {"transpose", &transpose_call},
      {"reshape", &reshape_call},
      {"broadcast_to", &broadcast_call},
      {"copy", &copy_call},
      {"contiguous", &contiguous_call},
      {"convert", &convert_call},
      {"Additive::concat", &concat_call},
      {"softmax", &softmax_call},
      {"masked_softmax", &masked_softmax_call},
      {"batch_dot", &batch_dot_call},
      {"Executor", &executor},
      {"Executor::threads", &executor_threads},
  };
  const auto found = kCalls.find(arguments.function());
  return found == kCalls.end() ? nullptr : found->second(arguments);
}

Call prepare(Arguments& arguments) {
  if (Call call = prepare_attention(arguments)) return call;
  if (Call call = prepare_arrays(arguments)) return call;
  throw TableError("\"" + arguments.function() + "\" is no function of this table");
}

}  // namespace qkv::test
