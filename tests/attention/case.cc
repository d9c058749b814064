// SPDX-License-Identifier: Apache-2.0
#include "tests/attention/case.h"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "core/storage.h"

namespace qkv::test {
namespace {

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

double number(const std::string& word) {
  char* end = nullptr;
  const double value = std::strtod(word.c_str(), &end);
  if (end != word.c_str() + word.size()) throw std::runtime_error("not a number: " + word);
  return value;
}

// Reads an array from `head`, the words of `in|want NAME DTYPE RANK d0 ..`, and its line of values.
std::pair<std::string, Array> read_array(const std::vector<std::string>& head,
                                         const std::string& line) {
  Array array;
  array.dtype = head.at(2);
  const std::size_t rank = std::stoul(head.at(3));
  for (std::size_t axis = 0; axis < rank; ++axis)
    array.shape.push_back(std::stol(head.at(4 + axis)));
  for (const std::string& word : words_of(line)) array.values.push_back(number(word));
  if (static_cast<Index>(array.values.size()) != element_count(array.shape)) {
    throw std::runtime_error("wrong number of values for " + head.at(1));
  }
  return {head.at(1), array};
}

DType stored_dtype(const Array& array, DType real) {
  if (array.dtype == "i64") return DType::kInt64;
  if (array.dtype == "bool") return DType::kBool;
  return real;
}

Tensor tensor_of(const Array& array, DType real) {
  Tensor tensor(stored_dtype(array, real), array.shape);
  const View view = tensor.view();
  for (std::size_t n = 0; n < array.values.size(); ++n) {
    core::store(view.dtype(), view.data(), static_cast<Index>(n), array.values[n]);
  }
  return tensor;
}

// The user functions that the cases name, on any scalar S. constant() converts x to S, by way of
// float if S is float or Dual<float>.
template <class S>
S constant(double x) {
  if constexpr (std::is_same_v<S, float> || std::is_same_v<S, Dual<float>>) {
    return S(static_cast<float>(x));
  } else {
    return S(x);
  }
}

struct Decay {
  template <class S>
  S operator()(S s, At at) const {
    return s - constant<S>(0.25 * (at.h + 1) * std::abs(at.i - at.j));
  }
};
struct Quad {
  template <class S>
  S operator()(S s, At) const {
    return s + constant<S>(0.05) * s * s;
  }
};
struct Leaky {
  template <class S>
  S operator()(S s, At) const {
    if constexpr (core::kIsComplex<S>) {
      return s.real() >= 0 ? s : constant<S>(0.5) * s;
    } else {
      return s >= constant<S>(0) ? s : constant<S>(0.5) * s;
    }
  }
};

template <class F>
void apply_complex(const void* callable, const detail::ScoreTile<std::complex<double>>& tile) {
  const F& f = *static_cast<const F*>(callable);
  for (std::int32_t r = 0; r < tile.rows; ++r) {
    for (std::int32_t c = 0; c < tile.cols; ++c) {
      std::complex<double>& s = tile.scores[r * tile.row_stride + c];
      s = f(s, detail::shifted(tile.at, r, c));
    }
  }
}

template <class F>
ScoreMod mod_with_complex(F f) {
  ScoreMod mod = score_mod(f);
  mod.complex128 = &apply_complex<F>;
  return mod;
}

ScoreMod score_mod_named(const std::string& name) {
  if (name == "decay") return mod_with_complex(Decay{});
  if (name == "quad") return mod_with_complex(Quad{});
  if (name == "leaky") return mod_with_complex(Leaky{});
  throw std::runtime_error("unknown mod " + name);
}

MaskMod mask_mod_named(const std::string& name) {
  if (name == "band3") return mask_mod([](At at) { return std::abs(at.i - at.j) <= 3; });
  if (name == "doc") return mask_mod([](At at) { return at.i / 3 == at.j / 3; });
  throw std::runtime_error("unknown mask mod " + name);
}

}  // namespace

std::vector<std::string> Case::setting(const std::string& key) const {
  for (const auto& words : settings) {
    if (words.front() == key) return {words.begin() + 1, words.end()};
  }
  return {};
}

std::vector<Case> read_cases(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(path + ": cannot be read");
  std::vector<Case> cases;
  int line_number = 0;
  for (std::string line; std::getline(file, line);) {
    ++line_number;
    const std::vector<std::string> words = words_of(line);
    try {
      if (words.empty()) throw std::runtime_error("an empty line");
      if (words[0] == "case") {
        cases.emplace_back().name = words.at(1);
      } else if (words[0] == "set") {
        cases.back().settings.push_back({words.begin() + 1, words.end()});
      } else if (words[0] == "in" || words[0] == "want") {
        std::getline(file, line);
        ++line_number;
        auto& arrays = words[0] == "in" ? cases.back().in : cases.back().want;
        if (!arrays.insert(read_array(words, line)).second) {
          throw std::runtime_error(words[1] + " comes twice");
        }
      } else if (words[0] != "end") {
        throw std::runtime_error("unknown line " + words[0]);
      }
    } catch (const std::exception& error) {
      throw std::runtime_error(path + ":" + std::to_string(line_number) + ": " + error.what());
    }
  }
  return cases;
}

CaseCall::CaseCall(const Case& c, DType real) : case_(c), real_(real) {
  for (const auto& [name, array] : c.in) {
    // dlse, dweights and drow_weights have the accumulator's type in every call.
    const bool sums = name == "dlse" || name == "dweights" || name == "drow_weights";
    const DType dtype = name == "frequencies" ? DType::kFloat64
                        : sums                ? accumulator_of(real)
                                              : real;
    tensors_.emplace(name, tensor_of(array, dtype));
  }
  inputs_ = {input("q"), input("k"), input("v"), input("cu_seqlens_q"), input("cu_seqlens_k")};
  set_row_options();
  set_score();
  for (const auto& words : c.settings) {
    if (words[0] == "scale") options_.scale = number(words[1]);
    if (words[0] == "softcap") options_.softcap = number(words[1]);
    if (words[0] == "dropout") options_.dropout = {number(words[1]), std::stoull(words[2])};
    if (words[0] == "diagonal" && words[1] == "top_left") options_.diagonal = TopLeft{};
    if (words[0] == "diagonal" && words[1] == "bottom_right") options_.diagonal = BottomRight{};
    if (words[0] == "diagonal" && words[1].find('_') == std::string::npos) {
      options_.diagonal = Offset{std::stol(words[1])};
    }
  }
  if (c.has("offsets")) options_.diagonal = Offsets{input("offsets")};
  options_.bias = input("bias");
  options_.alibi = input("alibi");
  options_.sinks = input("sinks");
  set_mods();
  set_masks();
}

ConstView CaseCall::input(const std::string& name) const {
  const auto at = tensors_.find(name);
  return at == tensors_.end() ? ConstView() : ConstView(at->second);
}

Tensor* CaseCall::tensor(const std::string& name) {
  const auto at = tensors_.find(name);
  return at == tensors_.end() ? nullptr : &at->second;
}

void CaseCall::set_row_options() {
  for (const auto& words : case_.settings) {
    if (words[0] == "norm") {
      options_.qk_norm = QkNorm{input("norm_q"), input("norm_k"), number(words[1])};
    }
    if (words[0] == "rotary") {
      options_.rotary = Rotary{
          .pairs = words[1] == "halves" ? RotaryPairing::kHalves : RotaryPairing::kNeighbours,
          .base = number(words[2]),
          .width = std::stol(words[3]),
          .frequencies = input("frequencies"),
          .q_positions = input("q_positions"),
          .k_positions = input("k_positions"),
      };
    }
  }
}

void CaseCall::set_score() {
  const std::string score = case_.setting("score").at(0);
  if (score == "dot") {
    options_.score = Dot{};
  } else if (score == "scaled_dot") {
    options_.score = ScaledDot{};
  } else if (score == "cosine") {
    options_.score = Cosine{};
  } else if (score == "bilinear") {
    options_.score = Bilinear{input("bilinear_w")};
  } else if (score == "additive") {
    options_.score = Additive{input("additive_wq"), input("additive_wk"), input("additive_v"),
                              input("additive_b")};
  } else {
    throw std::runtime_error("unknown score " + score);
  }
}

void CaseCall::set_mods() {
  for (const auto& words : case_.settings) {
    if (words[0] == "mod") options_.mods.push_back(score_mod_named(words[1]));
  }
}

void CaseCall::set_masks() {
  for (const auto& words : case_.settings) {
    if (words[0] == "causal") options_.masks.emplace_back(Causal{});
    if (words[0] == "window") {
      options_.masks.emplace_back(Window{std::stol(words[1]), std::stol(words[2])});
    }
    if (words[0] == "mask_mod") options_.masks.emplace_back(mask_mod_named(words[1]));
  }
  if (case_.has("keep")) options_.masks.emplace_back(Keep{input("keep")});
  if (case_.has("padding")) options_.masks.emplace_back(Padding{input("padding")});
  if (case_.has("key_lengths")) options_.masks.emplace_back(KeyLengths{input("key_lengths")});
}

Tensor CaseCall::result(const std::string& name) const {
  const Array& want = case_.want.at(name);
  const bool narrow = name == "out" || is_gradient(name);
  return Tensor(stored_dtype(want, narrow ? real_ : accumulator_of(real_)), want.shape);
}

bool is_gradient(const std::string& name) {
  return name.front() == 'd' && name != "dropped_weights";
}

Outputs ask_for(const Case& c, const CaseCall& call, std::map<std::string, Tensor>& results) {
  for (const auto& [name, array] : c.want) {
    if (!is_gradient(name)) results.emplace(name, call.result(name));
  }
  const auto view = [&](const std::string& name) {
    const auto at = results.find(name);
    return at == results.end() ? View() : View(at->second);
  };
  const std::vector<std::string> top = c.setting("top");
  Outputs o;
  o.out = view("out");
  o.lse = view("lse");
  o.row_max = view("row_max");
  o.entropy = view("entropy");
  o.column_sums = view("column_sums");
  o.value_sums = view("value_sums");
  o.pooled = view("pooled");
  if (!top.empty()) o.top = {std::stol(top[0]), view("top_weights"), view("top_keys")};
  o.weights = view("weights");
  if (c.want.count("row_weights") != 0 && !o.weights.matrix.given()) {
    o.weights = {call.input("rows"), view("row_weights")};
  }
  o.dropped_weights = view("dropped_weights");
  o.raw_scores = view("scores_raw");
  o.capped_scores = view("scores_capped");
  o.masked_scores = view("scores_masked");
  return o;
}

std::map<std::string, Tensor> run_forward(const Case& c, const CaseCall& call, Context& context) {
  std::map<std::string, Tensor> results;
  const Outputs outputs = ask_for(c, call, results);
  attention(call.inputs(), call.options(), outputs, context);
  if (results.count("row_weights") != 0 &&
      outputs.weights.matrix.data() != results.at("row_weights").view().data()) {
    Outputs rows;  // for a second call, of the listed rows: the first one has requested all weights
    rows.weights = {call.input("rows"), View(results.at("row_weights"))};
    rows.column_sums = {call.input("rows"), View(results.at("row_column_sums"))};
    rows.value_sums = results.at("row_value_sums");
    attention(call.inputs(), call.options(), rows, context);
  }
  return results;
}

std::map<std::string, Tensor> run_backward(const Case& c, const CaseCall& call,
                                           const std::map<std::string, Tensor>& forward,
                                           Context& context) {
  std::map<std::string, Tensor> results;
  for (const auto& [name, array] : c.want) {
    if (is_gradient(name)) results.emplace(name, call.result(name));
  }
  if (results.empty()) return results;
  const auto view = [&](const std::string& name) {
    const auto at = results.find(name);
    return at == results.end() ? View() : View(at->second);
  };
  InputGradients to{.q = view("dq"),
                    .k = view("dk"),
                    .v = view("dv"),
                    .qk_norm = {view("dnorm_q"), view("dnorm_k")},
                    .bias = view("dbias"),
                    .alibi = view("dalibi"),
                    .sinks = view("dsinks")};
  if (view("dbilinear_w").given()) to.score = BilinearGradient{view("dbilinear_w")};
  if (view("dadditive_wq").given()) {
    to.score = AdditiveGradient{view("dadditive_wq"), view("dadditive_wk"), view("dadditive_v"),
                                view("dadditive_b")};
  }
  ConstRows weights(call.input("dweights"));
  if (c.has("drow_weights")) weights = {call.input("rows"), call.input("drow_weights")};
  attention_backward(
      call.inputs(), call.options(), {.out = forward.at("out"), .lse = forward.at("lse")},
      {.out = call.input("dout"), .lse = call.input("dlse"), .weights = weights}, to, context);
  return results;
}

}  // namespace qkv::test
