// SPDX-License-Identifier: Apache-2.0
#include "options.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include <qkv/tensor.h>

#include "arguments.h"
#include "numpy.h"

namespace qkv::python {
namespace {

// The places in the tuple: the order of _functions.py.
enum OptionPlace {
  kScore,
  kParams,
  kScale,
  kSoftcap,
  kMask,
  kPaddingMask,
  kBias,
  kKeyLengths,
  kCausal,
  kCausalOffset,
  kWindow,
  kAlibiSlopes,
  kSinks,
  kCuSeqlensQ,
  kCuSeqlensK,
  kDropout,
  kSeed,
  kLayout,
  kOptionPlaces
};

constexpr std::array<const char*, kOptionPlaces> kNames = {
    "score", "params",       "scale",        "softcap",       "mask",   "padding_mask",
    "bias",  "key_lengths",  "causal",       "causal_offset", "window", "alibi_slopes",
    "sinks", "cu_seqlens_q", "cu_seqlens_k", "dropout",       "seed",   "layout"};

// The first element that is neither 0 nor 1. What is broadcast is looked at once.
std::optional<Index> first_besides_flags(const ConstView& view, int axis = 0) {
  if (view.element_count() == 0) return std::nullopt;
  if (axis == view.rank()) {
    const Index value = convert(view, DType::kInt64).values<Index>()[0];
    return value == 0 || value == 1 ? std::nullopt : std::optional(value);
  }
  if (axis + 1 == view.rank() && view.stride(axis) != 0) {
    const Tensor row = convert(view, DType::kInt64);
    for (const Index value : row.values<Index>()) {
      if (value != 0 && value != 1) return value;
    }
    return std::nullopt;
  }
  const Index count = view.stride(axis) == 0 ? 1 : view.size(axis);
  for (Index n = 0; n < count; ++n) {
    if (const auto odd = first_besides_flags(slice(view, axis, n, n + 1), axis + 1)) return odd;
  }
  return std::nullopt;
}

class Reader {
 public:
  Reader(const char* function, const nb::tuple& options, CallArguments& call)
      : function_(function), options_(options), call_(call) {}

  void read() {
    Options& o = call_.options;
    call_.inputs.cu_seqlens_q = array(kCuSeqlensQ);
    call_.inputs.cu_seqlens_k = array(kCuSeqlensK);
    read_score();
    if (given(kScale)) o.scale = number_of(at(kScale), name(kScale));
    if (given(kSoftcap)) o.softcap = number_of(at(kSoftcap), name(kSoftcap));
    o.bias = array(kBias);
    o.alibi = array(kAlibiSlopes);
    o.sinks = array(kSinks);
    read_causal();
    read_window();
    read_masks();
    if (given(kDropout)) o.dropout.p = number_of(at(kDropout), name(kDropout));
    if (given(kSeed)) o.dropout.seed = seed_of(at(kSeed), name(kSeed));
  }

  Layout layout() const {
    return static_cast<Layout>(word_of(at(kLayout), name(kLayout), {"bhtd", "bthd"}));
  }

 private:
  nb::handle at(OptionPlace place) const { return PyTuple_GET_ITEM(options_.ptr(), place); }
  bool given(OptionPlace place) const { return !at(place).is_none(); }
  Name name(OptionPlace place) const { return {function_, kNames[place]}; }

  ConstView array(OptionPlace place) {
    if (!given(place)) return {};
    const bool is_real = place == kBias || place == kAlibiSlopes || place == kSinks;
    const bool is_flags = place == kMask || place == kPaddingMask;
    const DType real = is_real ? accumulator_of(call_.inputs.q.dtype()) : DType::kNone;
    const Name plain = name(place);
    const Name named = is_real ? plain : plain.with_types(is_flags ? kFlags : kIntegers);
    return call_.hold(array_or_sequence(at(place), named, real)).view;
  }

  void read_score() {
    Score& score = call_.options.score;
    const int word =
        word_of(at(kScore), name(kScore), {"scaled_dot", "dot", "bilinear", "additive"});
    if (word == 2) {
      Bilinear& bilinear = score.emplace<Bilinear>();
      read_params({{"W", &bilinear.w}});
    } else if (word == 3) {
      Additive& additive = score.emplace<Additive>();
      read_params(
          {{"Wq", &additive.wq}, {"Wk", &additive.wk}, {"v", &additive.v}, {"b", &additive.b}});
    } else {
      if (word == 1) score = Dot{};
      if (given(kParams)) {
        throw_value_error(name(kParams),
                          "is given but the score " + describe(at(kScore)) + " has no parameters");
      }
    }
  }

  using Parameter = std::pair<const char*, ConstView*>;
  void read_params(std::initializer_list<Parameter> parameters) {
    if (!given(kParams)) return;  // the library says what is absent
    if (!nb::isinstance<nb::dict>(at(kParams))) {
      throw_type_error(name(kParams), "must be a dict of arrays, got " + describe(at(kParams)));
    }
    // A copy: what __dlpack__ of a value does to the caller's dict does not matter here.
    const nb::dict params = nb::steal<nb::dict>(PyDict_Copy(at(kParams).ptr()));
    for (const auto& [key, value] : params) read_param(key, value, parameters);
  }

  void read_param(nb::handle key, nb::handle value, std::initializer_list<Parameter> parameters) {
    std::string list;
    for (const auto& [word, view] : parameters) {
      list += (list.empty() ? "\"" : ", \"") + std::string(word) + "\"";
      if (!nb::isinstance<nb::str>(key) || !key.equal(nb::str(word))) continue;
      const std::string argument = "params[\"" + std::string(word) + "\"]";
      *view = call_.hold(array_of(value, {function_, argument.c_str()})).view;
      return;
    }
    throw_value_error(name(kParams), "may have the keys " + list + ", got " + describe(key));
  }

  void read_causal() {
    Options& o = call_.options;
    const nb::handle causal = at(kCausal);
    const bool on = nb::isinstance<nb::str>(causal) || (given(kCausal) && causal_flag());
    if (nb::isinstance<nb::str>(causal) &&
        word_of(causal, name(kCausal), {"bottom_right", "top_left"}, "False, True") == 1) {
      o.diagonal = TopLeft{};
    }
    if (on) o.masks.emplace_back(Causal{});
    if (!given(kCausalOffset)) return;
    if (!on) throw_value_error(name(kCausalOffset), "is given but causal is not");
    if (nb::isinstance<nb::str>(causal)) {
      throw_value_error(name(kCausalOffset), "is given but causal names a corner, " +
                                                 describe(causal) +
                                                 "; with an offset causal is True");
    }
    const nb::handle offset = at(kCausalOffset);
    if (PyFloat_Check(offset.ptr()) != 0)
      index_of(offset, name(kCausalOffset));  // says what it must be
    if (PyIndex_Check(offset.ptr()) != 0 && !nb::hasattr(offset, "shape")) {
      o.diagonal = Offset{index_of(offset, name(kCausalOffset))};
      return;
    }
    const ConstView offsets = array(kCausalOffset);
    // A NumPy integer, or an array without axes.
    if (offsets.rank() == 0 && is_integer(offsets.dtype())) {
      o.diagonal = Offset{index_of(offset, name(kCausalOffset))};
    } else {
      o.diagonal = Offsets{offsets};
    }
  }

  bool causal_flag() const {
    if (is_flag(at(kCausal))) return flag_of(at(kCausal), name(kCausal));
    throw_type_error(name(kCausal), "must be False, True, \"bottom_right\" or \"top_left\", got " +
                                        describe(at(kCausal)));
  }

  void read_window() {
    if (!given(kWindow)) return;
    nb::object window = nb::borrow(at(kWindow));
    if (numpy().is_array(window)) window = window.attr("tolist")();
    const bool pair = (nb::isinstance<nb::tuple>(window) || nb::isinstance<nb::list>(window)) &&
                      nb::len(window) == 2;
    if (!pair) {
      throw_type_error(name(kWindow), "must be a pair (left, right), got " + describe(at(kWindow)));
    }
    call_.options.masks.emplace_back(
        Window{index_of(nb::object(window[0]), {function_, "window[0]"}),
               index_of(nb::object(window[1]), {function_, "window[1]"})});
  }

  void read_masks() {
    std::vector<Mask>& masks = call_.options.masks;
    if (given(kMask)) {
      const ConstView keep = array(kMask);
      if (is_real(keep.dtype())) {
        throw_type_error(name(kMask), "must be bool or an integer type, got " +
                                          qkv::describe(keep) +
                                          " (what is added to the scores is bias)");
      }
      if (is_integer(keep.dtype())) check_flags(keep);
      masks.emplace_back(Keep{keep});
    }
    if (given(kPaddingMask)) masks.emplace_back(Padding{array(kPaddingMask)});
    if (given(kKeyLengths)) masks.emplace_back(KeyLengths{array(kKeyLengths)});
  }

  // Numbers that somebody meant to be added would act as the opposite.
  void check_flags(const ConstView& keep) const {
    const auto odd = first_besides_flags(keep);
    if (!odd) return;
    throw_value_error(name(kMask), "must be bool, or of 0 and 1, got " + std::to_string(*odd) +
                                       " in " + qkv::describe(keep) +
                                       " (what is added to the scores is bias)");
  }

  const char* function_;
  const nb::tuple& options_;
  CallArguments& call_;
};

template <class AnyView>
AnyView swapped(const AnyView& view, Layout layout) {
  return layout == Layout::kBhtd || !view.given() ? view : transpose(view, 1, 2);
}

}  // namespace

ConstView as_heads_first(const ConstView& view, Layout layout) { return swapped(view, layout); }
View as_heads_first(const View& view, Layout layout) { return swapped(view, layout); }

CallArguments call_arguments(const char* function, nb::handle q, nb::handle k, nb::handle v,
                             const nb::tuple& options) {
  CallArguments call;
  if (nb::len(options) != kOptionPlaces) throw nb::type_error("qkv: options of another version");
  Reader reader(function, options, call);
  call.layout = reader.layout();
  const std::pair<const char*, nb::handle> arrays[] = {{"q", q}, {"k", k}, {"v", v}};
  call.arrays.reserve(std::size(arrays));
  ConstView* const views[] = {&call.inputs.q, &call.inputs.k, &call.inputs.v};
  for (std::size_t n = 0; n < std::size(arrays); ++n) {
    const Name name{function, arrays[n].first};
    const ConstView& view = call.hold(array_of(arrays[n].second, name)).view;
    if (call.layout == Layout::kBthd && view.given() && view.rank() != 4) {
      throw_value_error(name, "must have rank 4 with layout \"bthd\", got " + qkv::describe(view));
    }
    *views[n] = as_heads_first(view, call.layout);
  }
  reader.read();
  return call;
}

double work_of(const CallArguments& call, const ResultShapes& shapes) {
  const auto size = [](const ConstView& x, int axis) {
    return x.rank() >= -axis ? static_cast<double>(x.size(axis)) : 0;
  };
  const auto count = [](const Dims& dims) {
    double product = 1;
    for (int axis = 0; axis < dims.rank(); ++axis) product *= static_cast<double>(dims[axis]);
    return product;
  };
  const ConstView &q = call.inputs.q, &k = call.inputs.k;
  const double rows = count(shapes.rows);
  const double Dq = size(q, -1), Dk = size(k, -1);
  double width = Dk + size(call.inputs.v, -1);
  double projections = 0;
  if (std::holds_alternative<Bilinear>(call.options.score)) projections = rows * Dq * Dk;
  if (const auto* additive = std::get_if<Additive>(&call.options.score)) {
    const double U = size(additive->wk, -2);
    width += 8 * U;  // tanh
    projections = U * (rows * Dq + count(shapes.keys) * Dk);
  }
  return rows * size(k, -2) * width + projections;
}

}  // namespace qkv::python
