// SPDX-License-Identifier: Apache-2.0
#include "options.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include <qkv/tensor.h>

#include "areas.h"
#include "arguments.h"
#include "expressions.h"
#include "numpy.h"

namespace qkv::python {
namespace {

// The list of options: how they are named here and in Python, in the order in which Python passes
// them (_core.OPTIONS).
#define QKV_PYTHON_OPTIONS(X)                 \
  X(kScore, "score")                          \
  X(kParams, "params")                        \
  X(kQkNorm, "qk_norm")                       \
  X(kRotary, "rotary")                        \
  X(kRotaryBase, "rotary_base")               \
  X(kRotaryWidth, "rotary_width")             \
  X(kRotaryFrequencies, "rotary_frequencies") \
  X(kQPositions, "q_positions")               \
  X(kKPositions, "k_positions")               \
  X(kScale, "scale")                          \
  X(kSoftcap, "softcap")                      \
  X(kScoreMod, "score_mod")                   \
  X(kMaskMod, "mask_mod")                     \
  X(kMask, "mask")                            \
  X(kPaddingMask, "padding_mask")             \
  X(kBias, "bias")                            \
  X(kKeyLengths, "key_lengths")               \
  X(kCausal, "causal")                        \
  X(kCausalOffset, "causal_offset")           \
  X(kWindow, "window")                        \
  X(kAlibiSlopes, "alibi_slopes")             \
  X(kSinks, "sinks")                          \
  X(kCuSeqlensQ, "cu_seqlens_q")              \
  X(kCuSeqlensK, "cu_seqlens_k")              \
  X(kBlockTables, "block_tables")             \
  X(kContextLens, "context_lens")             \
  X(kShard, "shard")                          \
  X(kDropout, "dropout")                      \
  X(kSeed, "seed")                            \
  X(kLayout, "layout")                        \
  X(kHeads, "heads")

#define QKV_PLACE(place, name) place,
enum OptionPlace { QKV_PYTHON_OPTIONS(QKV_PLACE) kOptionPlaces };
#undef QKV_PLACE
#define QKV_NAME(place, name) name,
constexpr std::array<const char*, kOptionPlaces> kNames = {QKV_PYTHON_OPTIONS(QKV_NAME)};
#undef QKV_NAME
#undef QKV_PYTHON_OPTIONS

// The first element that is neither 0 nor 1, if there is one. Elements that a broadcast axis
// repeats are read once.
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
    if (const auto value = first_besides_flags(slice(view, axis, n, n + 1), axis + 1)) return value;
  }
  return std::nullopt;
}

// Reads the tuple of options into the inputs and options of a call.
class Reader {
 public:
  Reader(const char* function, const nb::tuple& options, CallArguments& call)
      : function_(function), options_(options), call_(call) {}

  void read() {
    Options& o = call_.options;
    call_.inputs.cu_seqlens_q = array(kCuSeqlensQ);
    call_.inputs.cu_seqlens_k = array(kCuSeqlensK);
    call_.inputs.block_tables = array(kBlockTables);
    call_.inputs.context_lens = array(kContextLens);
    read_shard();
    read_norm();
    read_rotary();
    read_score();
    if (given(kScale)) o.scale = number_of(at(kScale), name(kScale));
    if (given(kSoftcap)) o.softcap = number_of(at(kSoftcap), name(kSoftcap));
    read_mods();
    o.bias = array(kBias);
    o.alibi = array(kAlibiSlopes);
    o.sinks = array(kSinks);
    read_causal();
    read_window();
    read_masks();
    if (given(kDropout)) o.dropout.p = number_of(at(kDropout), name(kDropout));
    if (given(kSeed)) o.dropout.seed = seed_of(at(kSeed), name(kSeed));
  }

  // The layout of the arrays. With heads side by side it has H and G, G being 0 if it has to be
  // computed from the widths.
  Layout layout() const {
    Layout layout;
    layout.packed = given(kCuSeqlensQ) || given(kCuSeqlensK);
    if (word_of(at(kLayout), name(kLayout), {"bhtd", "bthd"}) == 1) {
      layout.order = Layout::Order::kHeadsThird;
    }
    for (const OptionPlace place : {kBlockTables, kContextLens}) {
      if (!given(place) || (layout.order == Layout::Order::kHeadsFirst && !given(kHeads))) continue;
      throw_value_error(name(given(kHeads) ? kHeads : kLayout),
                        "is not available with keys in pages (block_tables): q is [B,H,Tq,D]");
    }
    if (!given(kHeads)) return layout;
    if (layout.order == Layout::Order::kHeadsThird) {
      throw_value_error(name(kHeads),
                        "is for heads side by side, [B,T,H*D], but layout is \"bthd\"");
    }
    layout.order = Layout::Order::kSideBySide;
    const nb::handle heads = at(kHeads);
    const bool pair = nb::isinstance<nb::tuple>(heads) || nb::isinstance<nb::list>(heads);
    if (pair && nb::len(heads) != 2) {
      throw_type_error(name(kHeads), "must be H or a pair (H, G), got " + describe(heads));
    }
    layout.heads = count_of(pair ? nb::object(heads[0]) : nb::borrow(heads));
    layout.key_heads = pair ? count_of(nb::object(heads[1])) : 0;
    return layout;
  }

 private:
  nb::handle at(OptionPlace place) const { return NB_TUPLE_GET_ITEM(options_.ptr(), place); }
  bool given(OptionPlace place) const { return !at(place).is_none(); }
  Name name(OptionPlace place) const { return {function_, kNames[place]}; }

  ConstView array(OptionPlace place) {
    if (!given(place)) return {};
    const bool is_real =
        place == kBias || place == kAlibiSlopes || place == kSinks || place == kRotaryFrequencies;
    const bool is_flags = place == kMask || place == kPaddingMask;
    const DType real = is_real ? accumulator_of(call_.inputs.q.dtype()) : DType::kNone;
    const Name plain = name(place);
    const Name named = is_real ? plain : plain.with_types(is_flags ? kFlags : kIntegers);
    return call_
        .hold(call_.on_device ? array_on_device(at(place), named)
                              : array_or_sequence(at(place), named, real))
        .view;
  }

  void read_shard() {
    if (!given(kShard)) return;
    const nb::handle shard = at(kShard);
    const bool is_list = nb::isinstance<nb::tuple>(shard) || nb::isinstance<nb::list>(shard);
    if (!is_list || nb::len(shard) != 4) {
      throw_type_error(
          name(kShard),
          "must be None or (first_query, queries, first_key, keys), got " + describe(shard));
    }
    const auto number = [&](int n, const char* argument) {
      return index_of(nb::object(shard[n]), {function_, argument});
    };
    call_.inputs.shard = Shard{number(0, "shard.first_query"), number(1, "shard.queries"),
                               number(2, "shard.first_key"), number(3, "shard.keys")};
  }

  void read_norm() {
    if (!given(kQkNorm)) return;
    // Integers are rejected, because 0 and 1 are more likely meant as off and on than as an eps.
    const bool integer = PyIndex_Check(at(kQkNorm).ptr()) != 0 && !is_flag(at(kQkNorm));
    if (integer || nb::isinstance<nb::str>(at(kQkNorm)) || nb::hasattr(at(kQkNorm), "__len__")) {
      throw_type_error(name(kQkNorm),
                       "must be None, a bool or the eps, a float; got " + describe(at(kQkNorm)));
    }
    if (!is_flag(at(kQkNorm))) {
      call_.options.qk_norm = QkNorm{.eps = number_of(at(kQkNorm), name(kQkNorm))};
    } else if (flag_of(at(kQkNorm), name(kQkNorm))) {
      call_.options.qk_norm = QkNorm{};
    }
  }

  void read_rotary() {
    if (!given(kRotary)) {
      for (const OptionPlace place :
           {kRotaryBase, kRotaryWidth, kRotaryFrequencies, kQPositions, kKPositions}) {
        if (given(place)) throw_value_error(name(place), "is given but rotary is not");
      }
      return;
    }
    Rotary rotary;
    rotary.pairs = word_of(at(kRotary), name(kRotary), {"neighbours", "halves"}, "None") == 0
                       ? RotaryPairing::kNeighbours
                       : RotaryPairing::kHalves;
    if (given(kRotaryBase)) rotary.base = number_of(at(kRotaryBase), name(kRotaryBase));
    if (given(kRotaryWidth)) {
      rotary.width = index_of(at(kRotaryWidth), name(kRotaryWidth));
      if (rotary.width == 0) throw_value_error(name(kRotaryWidth), "must be 2 or more, got 0");
    }
    rotary.frequencies = array(kRotaryFrequencies);
    rotary.q_positions = array(kQPositions);
    rotary.k_positions = array(kKPositions);
    call_.options.rotary = rotary;
  }

  void read_score() {
    Score& score = call_.options.score;
    const auto names = names_of<Score>();
    const auto word = static_cast<std::size_t>(word_of(at(kScore), name(kScore), names));
    std::size_t n = 0;
    for_each_alternative<Score>([&]<class S>() {
      if (n++ == word) score = S{};
    });
    std::visit([&](auto& one) { read_params(one); }, score);
  }

  Index count_of(nb::handle object) const {
    const Index count = index_of(object, name(kHeads));
    if (count < 1) throw_value_error(name(kHeads), "must be 1 or more, got " + describe(object));
    return count;
  }

  template <class S>
  void read_params(S& score) {
    if (!given(kParams)) return;  // the library reports missing parameters
    if (!has_parameters<S>() && !call_.options.qk_norm) {
      throw_value_error(name(kParams), "is given but the score " +
                                           nb::cast<std::string>(nb::repr(at(kScore))) +
                                           " has no parameters");
    }
    if (!nb::isinstance<nb::dict>(at(kParams))) {
      throw_type_error(name(kParams), "must be a dict of arrays, got " + describe(at(kParams)));
    }
    // The dict is copied, because the __dlpack__ of a value may change the caller's dict.
    const nb::dict params = nb::steal<nb::dict>(PyDict_Copy(at(kParams).ptr()));
    for (const auto& [key, value] : params) read_param(key, value, score);
  }

  template <class S>
  void read_param(nb::handle key, nb::handle value, S& score) {
    std::string list;
    bool found = false;
    const auto look_at = [&](const std::string& word, ConstView& to) {
      list += (list.empty() ? "\"" : ", \"") + word + "\"";
      if (!nb::isinstance<nb::str>(key) || !key.equal(nb::str(word.c_str()))) return;
      const std::string argument = "params[\"" + word + "\"]";
      const Name named{function_, argument.c_str()};
      to =
          call_.hold(call_.on_device ? array_on_device(value, named) : array_of(value, named)).view;
      found = true;
    };
    S::for_each_parameter([&](const char* word, auto to, auto) { look_at(word, score.*to); });
    if (call_.options.qk_norm) {
      QkNorm::for_each_parameter([&](const char* side, auto to, auto) {
        look_at(gain_name(side), *call_.options.qk_norm.*to);
      });
    }
    if (found) return;
    throw_value_error(name(kParams), "may have the keys " + list + ", got " + describe(key));
  }

  void read_mods() {
    if (given(kScoreMod)) {
      const auto& bound = mod<BoundScoreMod>(kScoreMod);
      call_.options.mods = {bound.mod};
      call_.captured = bound.from.arrays;
    }
    if (given(kMaskMod)) {
      call_.options.masks.emplace_back(mod<BoundMaskMod>(kMaskMod).mod);
    }
  }

  // The mod stays alive, and with it the arrays that it reads, as long as the arrays of the call.
  template <class Bound>
  const Bound& mod(OptionPlace place) {
    const Array& held = call_.hold({{}, mod_of<Bound>(at(place), name(place)), {}});
    return nb::cast<const Bound&>(held.owner);
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
    if (nb::isinstance<nb::str>(causal)) {
      throw_value_error(name(kCausalOffset),
                        "is given but causal is " + nb::cast<std::string>(nb::repr(causal)) +
                            ", which names a corner; causal must be True or False if "
                            "causal_offset is given");
    }
    const nb::handle offset = at(kCausalOffset);
    if (PyFloat_Check(offset.ptr()) != 0)
      index_of(offset, name(kCausalOffset));  // throws the error for a float
    if (PyIndex_Check(offset.ptr()) != 0 && !nb::hasattr(offset, "shape")) {
      o.diagonal = Offset{index_of(offset, name(kCausalOffset))};
      return;
    }
    const ConstView offsets = array(kCausalOffset);
    // An array of rank 0, such as a NumPy integer, is one offset.
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
    // Arrays and tensors are converted to lists, whose numbers are checked to be integers below.
    if (!nb::isinstance<nb::str>(window) && nb::hasattr(window, "tolist")) {
      if (!numpy().is_array(window))
        array_of(window, name(kWindow).with_types(kIntegers));  // rejects unsupported tensors
      window = window.attr("tolist")();
    }
    const bool pair = (nb::isinstance<nb::tuple>(window) || nb::isinstance<nb::list>(window)) &&
                      nb::len(window) == 2;
    if (!pair) {
      throw_type_error(name(kWindow), "must be a pair (left, right), got " + describe(at(kWindow)));
    }
    const auto side = [&](int n, const char* argument) {
      const nb::object reach = window[n];
      return reach.is_none() ? -1 : index_of(reach, {function_, argument});
    };
    call_.options.masks.emplace_back(Window{side(0, "window[0]"), side(1, "window[1]")});
  }

  void read_masks() {
    std::vector<Mask>& masks = call_.options.masks;
    if (given(kMask)) {
      if (PyCallable_Check(at(kMask).ptr()) != 0) {
        throw_type_error(name(kMask), "must be an array or a list of numbers, got " +
                                          describe(at(kMask)) + "; a function is mask_mod");
      }
      const ConstView keep = array(kMask);
      if (is_real(keep.dtype())) {
        throw_type_error(name(kMask), "must be bool or an integer type, got " +
                                          qkv::describe(keep) +
                                          " (numbers to add to the scores are bias)");
      }
      if (is_integer(keep.dtype()) && !call_.on_device) check_flags(keep);
      masks.emplace_back(Keep{keep});
    }
    if (given(kPaddingMask)) masks.emplace_back(Padding{array(kPaddingMask)});
    if (given(kKeyLengths)) masks.emplace_back(KeyLengths{array(kKeyLengths)});
  }

  // Rejects integers other than 0 and 1: as an additive mask, where 0 allows a pair, they would
  // mean the opposite here.
  void check_flags(const ConstView& keep) const {
    const auto value = first_besides_flags(keep);
    if (!value) return;
    throw_value_error(name(kMask), "must be bool, or of 0 and 1, got " + std::to_string(*value) +
                                       " in " + qkv::describe(keep) +
                                       " (numbers to add to the scores are bias)");
  }

  const char* function_;
  const nb::tuple& options_;
  CallArguments& call_;
};

// Returns G if only H was given. For scores without parameters, the heads of q and k have the same
// width; for the others, q and k have the same number of heads. The heads of inputs.q are split
// already, those of inputs.k are not.
Index key_heads_of(const Inputs& inputs, Index heads, const Score& score, const Name& name) {
  const ConstView &q = inputs.q, &k = inputs.k;
  const bool one_width = !has_parameters(score);
  // The library reports the errors of these inputs.
  if (!one_width || !q.given() || q.size(-1) == 0 || k.rank() < 2 || k.size(-1) == 0) return heads;
  const Index width = k.size(-1) * (k.dtype() == DType::kQ8 ? BlockQ8::kNumbers : 1);
  if (width % q.size(-1) != 0) {
    throw_value_error(name,
                      "must have a width that is a multiple of D = " + std::to_string(q.size(-1)) +
                          ", a head's part of q, got " + qkv::describe(k));
  }
  return width / q.size(-1);
}

// Whether `x` has exactly this shape.
bool is_shape(const ConstView& x, std::initializer_list<Index> sizes) {
  return x.shape() == Dims(sizes);
}

// Advice, for an error message, on a mask or bias that does not broadcast but has a known shape.
std::string advice_for_mask(const ConstView& mask, const ConstView& q, const ConstView& k,
                            const char* name) {
  if (!mask.given() || q.rank() < 3 || k.rank() < 3) return {};
  const Index B = std::max(q.size(0), k.size(0)), Tq = q.size(-2), Tk = k.size(-2);
  const std::string argument = name;
  const bool has_heads = q.rank() == 4;
  if (is_shape(mask, {B, Tk})) {
    return "; for one row of keys for each batch entry write " + argument +
           (has_heads ? "[:, None, None]" : "[:, None]") + ", or padding_mask (true where padding)";
  }
  if (has_heads && is_shape(mask, {B, Tq, Tk})) {
    return "; for one matrix for each batch entry write " + argument + "[:, None]";
  }
  return {};
}

const ConstView* keep_of(const Options& options) {
  for (const Mask& mask : options.masks) {
    if (const auto* keep = std::get_if<Keep>(&mask)) return &keep->keep;
  }
  return nullptr;
}

std::string advice_for(const Error& error, const CallArguments& call) {
  const ConstView &q = call.inputs.q, &k = call.inputs.k;
  const std::string text = error.what();
  if (error.argument() == "q" && text.find("not a multiple of G") != std::string::npos &&
      call.layout.order == Layout::Order::kHeadsFirst && q.rank() == 4 && k.rank() == 4 &&
      k.size(2) > 0 && q.size(2) % k.size(2) == 0 && !call.inputs.block_tables.given()) {
    return "; arrays [B,T,H,D] need layout=\"bthd\"";
  }
  if (text.find("must broadcast to") == std::string::npos) return {};
  if (error.argument() == "bias") return advice_for_mask(call.options.bias, q, k, "bias");
  const ConstView* const keep = keep_of(call.options);
  if (error.argument() == "keep" && keep != nullptr) return advice_for_mask(*keep, q, k, "mask");
  return {};
}

}  // namespace

std::string gain_name(const char* side) { return std::string("norm_") + side; }

Error with_advice(const Error& error, const CallArguments& call) {
  const std::string advice = advice_for(error, call);
  const bool same_axes = call.layout.order == Layout::Order::kHeadsFirst;
  if (same_axes && advice.empty()) return error;
  return with_note(error, ((same_axes ? "" : " (axes as [B,H,T,.])") + advice).c_str());
}

CallArguments call_arguments(const char* function, nb::handle q, nb::handle k, nb::handle v,
                             const nb::tuple& options, bool on_device) {
  CallArguments call;
  call.on_device = on_device;
  if (nb::len(options) != kOptionPlaces)
    throw nb::type_error("qkv: the package and its extension are of different versions (options)");
  Reader reader(function, options, call);
  call.layout = reader.layout();
  const std::pair<const char*, nb::handle> arrays[] = {{"q", q}, {"k", k}, {"v", v}};
  call.arrays.reserve(std::size(arrays));
  ConstView* const views[] = {&call.inputs.q, &call.inputs.k, &call.inputs.v};
  for (std::size_t n = 0; n < std::size(arrays); ++n) {
    Name name{function, arrays[n].first};
    if (n > 0 && function == std::string_view("attention")) name.types = kRealsOrQ8;
    const nb::handle object = arrays[n].second;
    *views[n] = call.hold(on_device ? array_on_device(object, name) : array_of(object, name)).view;
  }
  reader.read();
  Layout& layout = call.layout;
  layout.batch = std::any_of(std::begin(views), std::end(views),
                             [](const ConstView* x) { return x->given() && x->rank() > 2; });
  *views[0] = as_heads_first(*views[0], layout, layout.heads, {function, "q"});
  if (layout.key_heads == 0) {
    layout.key_heads = key_heads_of(call.inputs, layout.heads, call.options.score, {function, "k"});
  }
  for (std::size_t n = 1; n < std::size(arrays); ++n) {
    *views[n] = as_heads_first(*views[n], layout, layout.key_heads, {function, arrays[n].first});
  }
  return call;
}

double work_of(const CallArguments& call, const ResultShapes& shapes) {
  const auto size = [](const ConstView& x, int axis) {
    return x.rank() >= -axis ? static_cast<double>(x.size(axis)) : 0;
  };
  const auto width_of = [&](const ConstView& x) {
    return size(x, -1) * (x.dtype() == DType::kQ8 ? BlockQ8::kNumbers : 1);
  };
  const auto count = [](const Dims& dims) {
    double product = 1;
    for (int axis = 0; axis < dims.rank(); ++axis) product *= static_cast<double>(dims[axis]);
    return product;
  };
  const ConstView &q = call.inputs.q, &k = call.inputs.k;
  const double rows = count(shapes.rows);
  const double Dq = size(q, -1), Dk = width_of(k);
  double width = Dk + width_of(call.inputs.v);
  double projections = 0;
  if (std::holds_alternative<Bilinear>(call.options.score)) projections = rows * Dq * Dk;
  if (const auto* additive = std::get_if<Additive>(&call.options.score)) {
    const double U = size(additive->wk, -2);
    width += 8 * U;  // tanh
    projections = U * (rows * Dq + count(shapes.keys) * Dk);
  }
  const double keys = call.inputs.block_tables.given()
                          ? size(call.inputs.block_tables, -1) * size(k, -3)
                          : size(k, -2);
  return rows * keys * width + projections;
}

void bind_options(nb::module_& module) {
  nb::list names;
  for (const char* name : kNames) names.append(name);
  module.attr("OPTIONS") = nb::tuple(names);
}

}  // namespace qkv::python
