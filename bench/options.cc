// SPDX-License-Identifier: Apache-2.0
// Groups that compare calls with options, user functions or other results with the plain call:
// "options", "custom" and "sums"; and the options in the group "backward".
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>

#include <qkv/expression.h>
#include <qkv/mods.h>
#include <qkv/soft_cap.h>

#include "groups.h"

namespace qkv::bench {
namespace {

struct OptionCase {
  std::string_view name;
  std::optional<double> target;
  void (*apply)(Problem& problem);
};

constexpr Index kLength = 2048;
constexpr Index kWidth = 64;

// A mask of random booleans, three quarters of which are true.
View random_mask(Problem& problem, const Dims& dims) {
  const View numbers = problem.add_random(dims, 4);
  const View mask = problem.add(DType::kBool, dims);
  constexpr float kQuartile = -0.866F;  // a quarter of the uniform numbers are smaller
  for (Index n = 0; n < mask.element_count(); ++n) {
    mask.as<bool>()[n] = numbers.as<float>()[n] > kQuartile;
  }
  return mask;
}

// Key lengths just short of all keys, so that skipped keys do not hide the cost of the option.
View nearly_all_keys(Problem& problem) {
  const View lengths = problem.add(DType::kInt64, {problem.shape.B});
  for (Index b = 0; b < problem.shape.B; ++b) {
    lengths.as<std::int64_t>()[b] = problem.shape.Tk - 3;
  }
  return lengths;
}

// ALiBi slopes of 2^-4, in the middle of the slopes of Press et al. 2022 for eight heads.
View usual_slopes(Problem& problem) {
  const View slopes = problem.add(DType::kFloat32, {problem.shape.H});
  for (Index h = 0; h < problem.shape.H; ++h) slopes.as<float>()[h] = 0x1p-4F;
  return slopes;
}

void add_dropout(Problem& p) { p.options.dropout = {0.1, 7}; }

void add_mask(Problem& p) { p.options.masks = {Keep{random_mask(p, {p.shape.Tq, p.shape.Tk})}}; }

void add_cap(Problem& p) { p.options.softcap = 30; }

void add_bias(Problem& p) { p.options.bias = p.add_random({p.shape.Tq, p.shape.Tk}, 5); }

// In each 128 keys, the key at kPadded is padding.
constexpr Index kPaddedEach = 128;
constexpr Index kPadded = 77;
void add_padding(Problem& p) {
  const View padding = p.add(DType::kBool, {p.shape.B, p.shape.Tk});
  for (Index n = 0; n < padding.element_count(); ++n) {
    padding.as<bool>()[n] = n % p.shape.Tk % kPaddedEach == kPadded;
  }
  p.options.masks = {Padding{padding}};
}

// Padding whose keys and values are NaN.
void add_padding_nan(Problem& p) {
  add_padding(p);
  for (const View& x : {p.k, p.v}) {
    float* const row = x.as<float>();
    const Index width = x.size(-1);
    for (Index n = 0; n < x.element_count() / width; ++n) {
      if (n % p.shape.Tk % kPaddedEach != kPadded) continue;
      std::fill_n(row + n * width, width, std::numeric_limits<float>::quiet_NaN());
    }
  }
}

constexpr double kOptionTarget = 1.25;
constexpr OptionCase kOptions[] = {
    {"dropout", kOptionTarget, add_dropout},
    {"mask", kOptionTarget, add_mask},
    {"soft-cap", kOptionTarget, add_cap},
    {"bias", kOptionTarget, add_bias},
    {"alibi", kOptionTarget, [](Problem& p) { p.options.alibi = usual_slopes(p); }},
    {"key-lengths", kOptionTarget,
     [](Problem& p) { p.options.masks = {KeyLengths{nearly_all_keys(p)}}; }},
    {"padding", kOptionTarget, add_padding},
    {"padding-nan", kOptionTarget, add_padding_nan},
    // "far-apart" is no option: scores are so far apart that many weights count as 0.
    {"far-apart", std::nullopt, [](Problem& p) { p.options.scale = 8; }},
};

// ---- user functions -------------------------------------------------------------------------

void add_arithmetic(Problem& p) {
  p.options.mods = {score_mod([](auto s, At) { return s * 0.5F + 0.25F; })};
}

void add_decay(Problem& p) {
  const View slopes = p.add(DType::kFloat32, {p.shape.H});
  float* slope = slopes.as<float>();
  for (Index h = 0; h < p.shape.H; ++h) slope[h] = 0.01F;
  p.options.mods = {score_mod([slope](auto s, At at) {
    const auto distance = static_cast<float>(std::abs(at.i - at.j));
    return s - slope[at.h] * distance;
  })};
}

void add_relative_table(Problem& p) {
  const float* table = p.add_random({p.shape.Tq + p.shape.Tk}, 8).as<float>();
  const auto middle = static_cast<std::int32_t>(p.shape.Tq);
  p.options.mods = {score_mod([=](auto s, At at) { return s + table[at.j - at.i + middle]; })};
}

void add_soft_cap(Problem& p) {
  p.options.mods = {score_mod([](auto s, At) { return soft_cap(s, 30.0F); })};
}

void add_mask_line(Problem& p) {
  p.options.masks = {mask_mod([](At at) { return ((at.i + at.j) & 15) != 3; })};
}

// A mask of four documents, one after the other, that do not attend to each other.
void add_documents(Problem& p) {
  const Index T = p.shape.Tk;
  std::int32_t* doc = p.add(DType::kInt32, {T}).as<std::int32_t>();
  for (Index j = 0; j < T; ++j) doc[j] = static_cast<std::int32_t>(4 * j / T);
  p.options.masks = {mask_mod([doc](At at) { return doc[at.i] == doc[at.j]; })};
}

// The mask of add_documents(), whose tiles are classified before the call.
void add_precomputed_documents(Problem& p) {
  add_documents(p);
  const auto plain = std::get<MaskMod>(p.options.masks.front());
  p.options.masks = {precompute(plain, p.shape.Tq, p.shape.Tk)};
}

// ---- user functions as expressions ----------------------------------------------------------

void add_decay_expression(Problem& p) {
  const Symbols x;
  const Captured slope(usual_slopes(p), "slope");
  p.options.mods = {score_mod(x.s - slope(x.h) * abs(x.i - x.j))};
}

void add_table_expression(Problem& p) {
  const Symbols x;
  const Captured table(p.add_random({p.shape.H, p.shape.Tq + p.shape.Tk}, 8), "table");
  p.options.mods = {score_mod(x.s + table(x.h, x.j - x.i + p.shape.Tq))};
}

// Adds a number of a table to the score: each head has 32 numbers, and each distance has a bucket
// that selects one of them.
void add_gather_expression(Problem& p) {
  constexpr Index kBuckets = 32;
  const Symbols x;
  const Index distances = p.shape.Tq + p.shape.Tk;
  const View bucket = p.add(DType::kInt32, {distances});
  for (Index n = 0; n < distances; ++n) {
    bucket.as<std::int32_t>()[n] = static_cast<std::int32_t>(n * 7 % kBuckets);
  }
  const Captured of_distance(bucket, "bucket");
  const Captured table(p.add_random({p.shape.H, kBuckets}, 8), "table");
  p.options.mods = {score_mod(x.s + table(x.h, of_distance(x.j - x.i + p.shape.Tq)))};
}

void add_square_expression(Problem& p) {
  const Symbols x;
  p.options.mods = {score_mod(x.s * x.s)};
}

void add_soft_cap_expression(Problem& p) {
  const Symbols x;
  p.options.mods = {score_mod(30 * tanh(x.s / 30))};
}

void add_documents_expression(Problem& p) {
  const Symbols x;
  const Index T = p.shape.Tk;
  const View documents = p.add(DType::kInt32, {T});
  for (Index j = 0; j < T; ++j) {
    documents.as<std::int32_t>()[j] = static_cast<std::int32_t>(4 * j / T);
  }
  const Captured document(documents, "document");
  p.options.masks = {mask_mod(document(x.i) == document(x.j))};
}

constexpr double kLineTarget = 1.08;
constexpr double kTableTarget = 1.1;
constexpr double kExpressionTarget = 1.15;
constexpr double kGatherTarget = 1.3;
constexpr double kCapTarget = 1.4;
constexpr double kDocumentsTarget = 0.35;
constexpr double kBackwardExpressionTarget = 1.2;
constexpr OptionCase kCustom[] = {
    {"arithmetic", kLineTarget, add_arithmetic},
    {"decay", kLineTarget, add_decay},
    {"relative-table", kLineTarget, add_relative_table},
    {"mask", kLineTarget, add_mask_line},
    {"soft-cap", std::nullopt, add_soft_cap},
    {"documents", std::nullopt, add_documents},
    {"documents-precomputed", kDocumentsTarget, add_precomputed_documents},
    {"decay-expression", kExpressionTarget, add_decay_expression},
    {"table-expression", kTableTarget, add_table_expression},
    {"gather-expression", kGatherTarget, add_gather_expression},
    {"square-expression", kExpressionTarget, add_square_expression},
    {"soft-cap-expression", kCapTarget, add_soft_cap_expression},
    {"documents-expression", kDocumentsTarget, add_documents_expression},
};

// Options whose cost is measured in the backward pass. A bias also gets its gradient, dbias.
constexpr OptionCase kBackward[] = {
    {"dropout", kOptionTarget, add_dropout},
    {"mask", kOptionTarget, add_mask},
    {"soft-cap", kOptionTarget, add_cap},
    {"bias", kOptionTarget, add_bias},
    {"padding", kOptionTarget, add_padding},
    {"padding-nan", kOptionTarget, add_padding_nan},
    {"decay", kLineTarget, add_decay},
    {"decay-expression", kBackwardExpressionTarget, add_decay_expression},
    {"table-expression", kBackwardExpressionTarget, add_table_expression},
    {"gather-expression", kGatherTarget, add_gather_expression},
    {"square-expression", kBackwardExpressionTarget, add_square_expression},
    {"soft-cap-expression", kCapTarget, add_soft_cap_expression},
    {"documents-expression", kDocumentsTarget, add_documents_expression},
};

// ---- sums of weights ------------------------------------------------------------------------

View buffer_of(Problem& p, Index T) { return p.add(DType::kFloat32, {p.shape.B, p.shape.H, T}); }

void add_entropy(Problem& p) { p.besides.entropy = buffer_of(p, p.shape.Tq); }
void add_column_sums(Problem& p) { p.besides.column_sums = buffer_of(p, p.shape.Tk); }
void add_value_sums(Problem& p) { p.besides.value_sums = buffer_of(p, p.shape.Tk); }
void add_pooled(Problem& p) {
  p.besides.pooled = p.add(DType::kFloat32, {p.shape.B, p.shape.H, 64, 64});
}
void add_all_sums(Problem& p) {
  add_entropy(p);
  add_column_sums(p);
  add_value_sums(p);
  add_pooled(p);
}

// Sums over the last 32 queries, as used to decide which keys a cache evicts.
void add_recent_sums(Problem& p) {
  const View rows = p.add(DType::kInt64, {32});
  for (Index r = 0; r < 32; ++r) rows.as<std::int64_t>()[r] = p.shape.Tq - 32 + r;
  p.besides.column_sums = {rows, buffer_of(p, p.shape.Tk)};
  p.besides.value_sums = buffer_of(p, p.shape.Tk);
}

constexpr double kSumsTarget = 2;
constexpr OptionCase kSums[] = {
    {"all", kSumsTarget, add_all_sums},
    {"entropy", std::nullopt, add_entropy},
    {"column-sums", std::nullopt, add_column_sums},
    {"pooled-64x64", std::nullopt, add_pooled},
    {"last-32-queries", std::nullopt, add_recent_sums},
};

template <std::size_t n>
void run_beside_plain(Session& session, const std::string& group, const OptionCase (&cases)[n],
                      Pass pass = Pass::kForward) {
  const Shape shape = square(session.length(kLength), kWidth);
  Problem plain = make_problem(shape);
  if (pass == Pass::kBackward) make_backward(plain);
  for (const OptionCase& one : cases) {
    Problem problem = make_problem(shape);
    one.apply(problem);
    if (pass == Pass::kBackward) make_backward(problem);
    session.against({group + "/" + std::string(one.name), one.target}, problem, plain,
                    Figure::kPlainRatio);
  }
}

}  // namespace

void run_options(Session& session) { run_beside_plain(session, "options", kOptions); }
void run_sums(Session& session) {
  for (const Index T : {kLength, 4 * kLength}) {
    const Shape shape = square(session.length(T), kWidth);
    Problem plain = make_problem(shape);
    for (const OptionCase& one : kSums) {
      Problem problem = make_problem(shape);
      one.apply(problem);
      const std::string name = "sums/" + name_of(shape) + "-" + std::string(one.name);
      session.against({name, one.target}, problem, plain, Figure::kPlainRatio);
      if (one.apply != add_all_sums || session.threads() < 2) continue;
      session.against({name + "-threads", one.target, session.threads()}, problem, plain,
                      Figure::kPlainRatio);
    }
  }
}
void run_custom(Session& session) { run_beside_plain(session, "custom", kCustom); }
void run_backward_options(Session& session) {
  run_beside_plain(session, "backward", kBackward, Pass::kBackward);
}

}  // namespace qkv::bench
