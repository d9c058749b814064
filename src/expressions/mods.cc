// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>

#include <qkv/error.h>
#include <qkv/expression.h>

#include "core/message.h"
#include "expressions/instances.h"

// The instances of expressions: the evaluation, compiled for each CPU target.
namespace qkv {
namespace {

using detail::ExpressionProgram;
using detail::InstanceTarget;
using detail::MaskTile;
using detail::ScoreTile;
using expressions::Evaluation;
using expressions::evaluation_of;
using expressions::kPiece;
using expressions::Program;
using expressions::RowPlace;

template <class T, InstanceTarget kTarget>
void apply_score(const void* callable, const ScoreTile<T>& tile) {
  const auto& instance = expressions::instance_for<T>(kTarget);
  const Program& program = static_cast<const ExpressionProgram*>(callable)->program;
  Evaluation<T>& evaluation = evaluation_of<T>(program);
  for (std::int32_t r = 0; r < tile.rows; ++r) {
    for (Index c = 0; c < tile.cols; c += kPiece) {
      const Index count = std::min(kPiece, tile.cols - c);
      T* const scores = tile.scores + r * tile.row_stride + c;
      // The derivative of a score plus a term is 1, which leaves the slopes as they are.
      const bool goes_back = tile.slopes != nullptr && !program.result().adds_to_score;
      instance.run(evaluation, RowPlace{tile.at, tile.lengths}.shifted(r, c), count, scores,
                   goes_back ? nullptr : scores);
      if (goes_back) {
        T* const slopes = tile.slopes + r * tile.row_stride + c;
        evaluation.begin_back(slopes, true, false);
        instance.go_back(evaluation, count);
        const T* const own = evaluation.score_gradients();
        if (own == nullptr) {
          std::fill_n(slopes, count, T(0));
        } else if (own != slopes) {
          std::copy_n(own, count, slopes);
        }
      }
      const auto& result = evaluation.result();
      if (result.numbers == nullptr) {
        std::fill_n(scores, count, result.number);
      } else if (result.numbers != scores) {
        std::copy_n(result.numbers, count, scores);
      }
    }
  }
}

template <InstanceTarget kTarget>
void apply_mask(const void* callable, const MaskTile& tile) {
  const auto& instance = expressions::instance_for<float>(kTarget);
  const Program& program = static_cast<const ExpressionProgram*>(callable)->program;
  Evaluation<float>& evaluation = evaluation_of<float>(program);
  for (std::int32_t r = 0; r < tile.rows; ++r) {
    std::uint8_t* const allowed = tile.allowed + r * tile.row_stride;
    for (Index c = 0; c < tile.cols; c += kPiece) {
      const Index count = std::min(kPiece, tile.cols - c);
      instance.run(evaluation, RowPlace{tile.at, tile.lengths}.shifted(r, c), count, nullptr,
                   nullptr);
      const auto& result = evaluation.result();
      for (Index n = 0; n < count; ++n) {
        const std::int32_t answer =
            result.integers == nullptr ? result.integer : result.integers[n];
        allowed[c + n] = static_cast<std::uint8_t>(allowed[c + n] & answer);
      }
    }
  }
}

template <class T>
QKV_INSTANCE void run_baseline(Evaluation<T>& evaluation, const RowPlace& place, Index count,
                               const T* scores, T* result) {
  evaluation.run(place, count, scores, result);
}
template <class T>
QKV_INSTANCE void back_baseline(Evaluation<T>& evaluation, Index count) {
  evaluation.go_back(count);
}
#if defined(__x86_64__)
template <class T>
QKV_INSTANCE QKV_AVX2 void run_avx2(Evaluation<T>& evaluation, const RowPlace& place, Index count,
                                    const T* scores, T* result) {
  evaluation.run(place, count, scores, result);
}
template <class T>
QKV_INSTANCE QKV_AVX2 void back_avx2(Evaluation<T>& evaluation, Index count) {
  evaluation.go_back(count);
}
template <class T>
QKV_INSTANCE QKV_AVX512 void run_avx512(Evaluation<T>& evaluation, const RowPlace& place,
                                        Index count, const T* scores, T* result) {
  evaluation.run(place, count, scores, result);
}
template <class T>
QKV_INSTANCE QKV_AVX512 void back_avx512(Evaluation<T>& evaluation, Index count) {
  evaluation.go_back(count);
}
#endif

template <InstanceTarget kTarget>
constexpr detail::ScoreInstance kScore{kTarget, &apply_score<float, kTarget>,
                                       &apply_score<double, kTarget>};

constexpr detail::ScoreInstance kScores[] = {
    kScore<InstanceTarget::kBaseline>,
#if defined(__x86_64__)
    kScore<InstanceTarget::kAvx2>,
    kScore<InstanceTarget::kAvx512>,
#endif
};
constexpr detail::MaskInstance kMasks[] = {
    {InstanceTarget::kBaseline, &apply_mask<InstanceTarget::kBaseline>},
#if defined(__x86_64__)
    {InstanceTarget::kAvx2, &apply_mask<InstanceTarget::kAvx2>},
    {InstanceTarget::kAvx512, &apply_mask<InstanceTarget::kAvx512>},
#endif
};

}  // namespace

template <class T>
const expressions::Instance<T>& expressions::instance_for(InstanceTarget target) {
  static constexpr Instance<T> kBaseline{&run_baseline<T>, &back_baseline<T>};
#if defined(__x86_64__)
  static constexpr Instance<T> kAvx2{&run_avx2<T>, &back_avx2<T>};
  static constexpr Instance<T> kAvx512{&run_avx512<T>, &back_avx512<T>};
  switch (target) {
    case InstanceTarget::kBaseline:
      return kBaseline;
    case InstanceTarget::kAvx2:
      return kAvx2;
    case InstanceTarget::kAvx512:
      return kAvx512;
  }
  __builtin_unreachable();
#else
  static_cast<void>(target);
  return kBaseline;
#endif
}
template const expressions::Instance<float>& expressions::instance_for(InstanceTarget);
template const expressions::Instance<double>& expressions::instance_for(InstanceTarget);

namespace {

bool depends_on_score(const Program& program) {
  return std::any_of(
      program.steps().begin(), program.steps().end(),
      [](const expressions::Step& x) { return x.operation == expressions::Operation::kScore; });
}

// The mask of a score where(mask, x, -inf) or where(not mask, -inf, x).
std::optional<Program> mask_of(const detail::ExpressionNode& score) {
  if (score.operation != expressions::Operation::kWhere) return std::nullopt;
  const auto is_masked = [&](std::size_t operand) {
    const detail::ExpressionNode& x = *score.operands[operand];
    return x.operation == expressions::Operation::kConstant &&
           x.number == -std::numeric_limits<double>::infinity();
  };
  if (is_masked(1) == is_masked(2)) return std::nullopt;
  const Expression condition(score.operands[0]);
  Program mask(is_masked(2) ? condition : !condition);
  if (depends_on_score(mask)) return std::nullopt;
  return mask;
}

}  // namespace

ScoreMod score_mod(const Expression& score) {
  if (score.type() == Expression::Type::kTruth) {
    throw Error("score_mod", "score",
                core::text("must be a number, got a truth value: ", score.text()));
  }
  auto program = std::make_shared<const ExpressionProgram>(
      ExpressionProgram{Program(to_number(score)), mask_of(score.node())});
  return {.callable = program,
          .instances = kScores,
          .instance_count = static_cast<int>(std::size(kScores)),
          .program = program};
}

MaskMod mask_mod(const Expression& mask) {
  if (mask.type() != Expression::Type::kTruth) {
    throw Error("mask_mod", "mask",
                core::text("must be a truth value, such as j <= i, got ", mask.text()));
  }
  auto program = std::make_shared<const ExpressionProgram>(ExpressionProgram{Program(mask)});
  if (depends_on_score(program->program)) {
    throw Error("mask_mod", "mask", core::text("must not depend on the score, got ", mask.text()));
  }
  return {.callable = program,
          .instances = kMasks,
          .instance_count = static_cast<int>(std::size(kMasks)),
          .program = program};
}

}  // namespace qkv
