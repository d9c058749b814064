// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include <qkv/app/array_file.h>
#include <qkv/attention.h>

#include "commands/shell/console.h"
#include "commands/shell/exit_codes.h"
#include "commands/shell/memory.h"
#include "commands/shell/unmasked_pairs.h"
#include "commands/words/words.h"

namespace {

using qkv::DType;
using qkv::Index;
using qkv::Tensor;

constexpr std::string_view kPrefix = "params.";

// The parameters in an .npz file, by name. If any of the file's names starts with "params.", the
// prefix that the command's own .npz files have, only names with this prefix are looked up.
class ParameterFile {
 public:
  explicit ParameterFile(const std::string& path)
      : path_(path), arrays_(qkv::app::read_npz(path, &stop_flag())) {
    prefixed_ = std::any_of(arrays_.begin(), arrays_.end(), [](const qkv::app::NamedArray& array) {
      return array.name.starts_with(kPrefix);
    });
  }

  // The parameter of this name as float64; empty if the file has none. Throws InputError unless its
  // dtype is a floating-point type.
  std::optional<Tensor> find(const std::string& name) const {
    const std::string wanted = (prefixed_ ? std::string(kPrefix) : "") + name;
    for (const qkv::app::NamedArray& array : arrays_) {
      if (array.name != wanted) continue;
      const auto* tensor = std::get_if<Tensor>(&array.array);
      if (tensor == nullptr || !qkv::is_real(tensor->dtype())) {
        fail(name, "real numbers", qkv::app::describe(array.array));
      }
      return qkv::convert(*tensor, DType::kFloat64);
    }
    return std::nullopt;
  }
  // The parameter of this name as float64. Throws InputError if it is missing or does not have this
  // shape; -1 in the shape allows any size.
  Tensor get(const std::string& name, const qkv::Dims& shape) const {
    std::optional<Tensor> tensor = find(name);
    if (!tensor) fail(name, "an array " + shown(shape), "none");
    bool fits = tensor->rank() == shape.rank();
    for (int axis = 0; fits && axis < shape.rank(); ++axis) {
      fits = shape[axis] == -1 || shape[axis] == tensor->size(axis);
    }
    if (!fits) fail(name, "shape " + shown(shape), qkv::to_string(tensor->shape()));
    return *std::move(tensor);
  }

 private:
  // A shape in messages, such as "[U,50]": the open size is the number of units.
  static std::string shown(const qkv::Dims& shape) {
    std::string text = qkv::to_string(shape);
    if (const auto open = text.find("-1"); open != std::string::npos) text.replace(open, 2, "U");
    return text;
  }
  [[noreturn]] void fail(const std::string& name, const std::string& expected,
                         const std::string& got) const {
    throw qkv::app::InputError(path_, fmt::format("{}: expected {}, got {}", name, expected, got));
  }

  std::string path_;
  std::vector<qkv::app::NamedArray> arrays_;
  bool prefixed_ = false;
};

Tensor parameter_copy(const Tensor& tensor) { return qkv::contiguous(tensor.view()); }

using Parameters = std::vector<Parameter>;

// The parameters of a score, in float64: from the parameter file or, if it is null, drawn from the
// seed.
template <class S>
  requires(!qkv::has_parameters<S>())
Parameters parameters_of(const S&, const ParameterFile*, Index, std::uint64_t) {
  return {};
}

Parameters parameters_of(const qkv::Bilinear&, const ParameterFile* file, Index width,
                         std::uint64_t seed) {
  qkv::BilinearAttention layer(width, width, 0, DType::kFloat64);
  qkv::initialise(layer, seed);
  Parameters parameters;
  parameters.push_back({"W", file != nullptr ? file->get("W", {width, width})
                                             : parameter_copy(layer.parameters().w)});
  return parameters;
}

Parameters parameters_of(const qkv::Additive&, const ParameterFile* file, Index width,
                         std::uint64_t seed) {
  Parameters parameters;
  if (file != nullptr) {
    Tensor wq = file->get("Wq", {-1, width});
    const Index units = wq.size(0);
    parameters.push_back({"Wq", std::move(wq)});
    parameters.push_back({"Wk", file->get("Wk", {units, width})});
    parameters.push_back({"v", file->get("v", {units})});
    if (file->find("b")) parameters.push_back({"b", file->get("b", {units})});
    return parameters;
  }
  qkv::AdditiveAttention layer(width, width, width, 0, DType::kFloat64);
  qkv::initialise(layer, seed);
  parameters.push_back({"Wq", parameter_copy(layer.parameters().w_q)});
  parameters.push_back({"Wk", parameter_copy(layer.parameters().w_k)});
  parameters.push_back({"v", parameter_copy(layer.parameters().v)});
  return parameters;
}

Parameters score_parameters(const WordsOptions& options, Index width) {
  std::optional<ParameterFile> file;
  if (!options.params.empty()) file.emplace(options.params);
  return std::visit(
      [&](const auto& score) {
        return parameters_of(score, file ? &*file : nullptr, width, options.seed);
      },
      options.score);
}

qkv::ConstView parameter(const std::vector<Parameter>& parameters, std::string_view name) {
  for (const Parameter& p : parameters) {
    if (p.name == name) return p.value;
  }
  return {};
}

// Allocates the results for x [T,D]. All but `out` have the leading axes `lead`, {} or {H}.
void reserve(WordAttention& attention, const qkv::Dims& lead, const Tensor& x, bool matrices) {
  const Index words = x.size(0);
  const auto with = [&](std::initializer_list<Index> sizes) {
    qkv::Dims shape = lead;
    for (const Index size : sizes) shape.push_back(size);
    return shape;
  };
  const Index largest = std::min<Index>(2, words);
  attention.out = Tensor(DType::kFloat64, x.shape());
  attention.lse = Tensor(DType::kFloat64, with({words}));
  attention.top_weights = Tensor(DType::kFloat64, with({words, largest}));
  attention.top_keys = Tensor(DType::kInt64, with({words, largest}));
  if (!matrices) return;
  attention.scores = Tensor(DType::kFloat64, with({words, words}));
  attention.weights = Tensor(DType::kFloat64, with({words, words}));
}

// A view of a tensor with an axis of size 1, the batch, in front, which layers with heads expect.
qkv::View with_batch(Tensor& tensor) {
  if (!tensor.given()) return {};
  qkv::Dims shape{Index{1}};
  for (const Index size : tensor.shape()) shape.push_back(size);
  return qkv::reshape(tensor.view(), shape);
}

// Requests the results, and masked scores in `masked`, which may be absent.
qkv::Outputs outputs_of(WordAttention& attention, Tensor& masked, bool heads) {
  const auto view = [&](Tensor& t) { return heads ? with_batch(t) : t.view(); };
  qkv::Outputs outputs;
  outputs.out = attention.out;
  outputs.lse = view(attention.lse);
  outputs.top = {attention.top_keys.size(-1 + attention.top_keys.rank()),
                 view(attention.top_weights), view(attention.top_keys)};
  outputs.weights = view(attention.weights);
  outputs.raw_scores = view(attention.scores);
  outputs.masked_scores = view(masked);
  return outputs;
}

// Memory for the scores after expressions, in the shape of attention.scores; absent if there are no
// expressions or attention.scores is absent.
Tensor masked_scores(const WordAttention& attention, const Expressions& expressions) {
  if (!expressions.given() || !attention.scores.given()) return {};
  return {DType::kFloat64, attention.scores.shape()};
}

// Sets attention.unmasked if a pair is masked.
void set_unmasked(WordAttention& attention, const Tensor& masked) {
  if (!masked.given()) return;
  Tensor unmasked = unmasked_pairs(masked);
  if (std::ranges::find(unmasked.values<bool>(), false) != unmasked.values<bool>().end()) {
    attention.unmasked = std::move(unmasked);
  }
}

WordAttention plain(const Tensor& x, const WordsOptions& options, const Expressions& expressions,
                    qkv::Context& context, bool matrices) {
  WordAttention attention;
  attention.parameters = score_parameters(options, x.size(1));
  attention.scale =
      std::visit([&]<class S>(const S&) { return S::default_scale(x.size(1)); }, options.score);
  attention.q = parameter_copy(x);
  attention.k = parameter_copy(x);
  attention.v = parameter_copy(x);
  reserve(attention, {}, x, matrices);
  Tensor masked = masked_scores(attention, expressions);
  qkv::Options call;
  call.score = options.score;
  take_parameters(call.score,
                  [&](const char* name) { return parameter(attention.parameters, name); });
  call.mods = expressions.mods;
  call.masks = expressions.masks;
  qkv::attention({attention.q, attention.k, attention.v}, call,
                 outputs_of(attention, masked, false), context);
  set_unmasked(attention, masked);
  return attention;
}

WordAttention with_heads(const Tensor& x, const WordsOptions& options,
                         const Expressions& expressions, qkv::Context& context, bool matrices) {
  const Index width = x.size(1);
  if (options.form == qkv::HeadForm::kSplit && width % options.heads != 0) {
    throw UsageError(
        fmt::format("--heads {} does not divide the {} numbers of a word; --form wide "
                    "takes any number",
                    options.heads, width));
  }
  qkv::MultiHeadAttention layer(
      {.width = width, .heads = options.heads, .form = options.form, .dtype = DType::kFloat64});
  qkv::initialise(layer, options.seed);
  WordAttention attention;
  std::optional<ParameterFile> file;
  if (!options.params.empty()) file.emplace(options.params);
  qkv::for_each_parameter(layer, [&](const auto& p) {
    if (file) qkv::copy(file->get(p.name, p.value.shape()), p.value.view());
    attention.parameters.push_back({p.name, parameter_copy(p.value)});
  });
  const bool split = options.form == qkv::HeadForm::kSplit;
  const Index head_width = width / options.heads;
  attention.scale = split ? 1 / std::sqrt(static_cast<double>(head_width)) : 1;
  reserve(attention, {options.heads}, x, matrices);
  Tensor masked = masked_scores(attention, expressions);
  qkv::RunState run;
  qkv::MultiHeadAttention::Saved saved;
  layer.forward({.q = x, .k = x, .v = x, .masks = expressions.masks, .mods = expressions.mods}, run,
                saved, outputs_of(attention, masked, true), context);
  set_unmasked(attention, masked);
  attention.q = std::move(saved.q);
  attention.k = std::move(saved.k);
  attention.v = std::move(saved.v);
  return attention;
}

}  // namespace

namespace {

// Throws UsageError unless the vectors, the parameters, and `pair_bytes` bytes for each head and
// pair of words fit in memory together.
void check_memory(const WordInput& input, const WordsOptions& options, double pair_bytes) {
  const auto words = static_cast<double>(input.x.size(0));
  const auto width = static_cast<double>(input.x.size(1));
  const auto heads = static_cast<double>(std::max<Index>(1, options.heads));
  const bool wide = options.heads > 0 && options.form == qkv::HeadForm::kWide;
  const bool learned = options.heads > 0 || qkv::has_parameters(options.score);
  const double parameters = learned ? 8 * width * width * (wide ? heads : 1) : 0;
  // Parameters are at most four matrices, each held twice: in the layer, and as a copy in results.
  ::check_memory(8 * 8 * words * width * (wide ? heads : 1) + 8 * parameters +
                     pair_bytes * heads * words * words,
                 fmt::format("word vectors [{},{}]", words, width),
                 "fewer words, --heads or --dim take less");
}

}  // namespace

WordAttention attend_words(const WordInput& input, const WordsOptions& options,
                           const Expressions& expressions, const Common& common, bool matrices) {
  // The scores, the weights and, with expressions, the masked scores and which pairs are unmasked.
  const double pair_bytes = expressions.given() ? 3 * 8 + 1 : 2 * 8;
  check_memory(input, options, matrices ? pair_bytes : 0);
  qkv::Context context(qkv::Executor::threads(common.threads));
  context.set_stop_flag(&stop_flag());
  const Tensor x = qkv::convert(input.x, DType::kFloat64);
  try {
    return options.heads > 0 ? with_heads(x, options, expressions, context, matrices)
                             : plain(x, options, expressions, context, matrices);
  } catch (const qkv::Error& error) {
    refuse_expression(error);
    throw;
  }
}
