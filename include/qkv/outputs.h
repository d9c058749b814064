// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_OUTPUTS_H_
#define QKV_OUTPUTS_H_

#include <concepts>
#include <cstddef>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include <qkv/view.h>

// The results that a call of attention() can return, and the list of them, kResults.
namespace qkv {

// Rows of a matrix with one row per query: all, or those listed in `rows` [R] (integers).
template <class AnyView>
struct BasicRows {
  ConstView rows{};
  AnyView matrix{};
  BasicRows() = default;
  // NOLINTBEGIN(google-explicit-constructor,bugprone-forwarding-reference-overload)
  template <class All>
    requires(std::convertible_to<All, AnyView> &&
             !std::same_as<std::remove_cvref_t<All>, BasicRows>)
  BasicRows(All&& all) : matrix(std::forward<All>(all)) {}
  // NOLINTEND(google-explicit-constructor,bugprone-forwarding-reference-overload)
  BasicRows(const ConstView& named, const AnyView& m) : rows(named), matrix(m) {}
};
using Rows = BasicRows<View>;
using ConstRows = BasicRows<ConstView>;

// The `count` largest weights (before dropout) of each query, largest first, equal ones by
// ascending key. If fewer keys are unmasked, the remaining entries have weight 0 and key -1.
struct Top {
  Index count = 0;
  View weights{};  // [B,H,Tq,count], accumulator type
  View keys{};     // [B,H,Tq,count], int32 or int64
};

// Weights (before dropout) summed over queries: all, or those listed in `rows` [R] (integers below
// Tq; one listed twice counts twice). With packed sequences `rows` must be absent.
struct ColumnSums {
  ConstView rows{};
  View sums{};
  ColumnSums() = default;
  // NOLINTBEGIN(google-explicit-constructor,bugprone-forwarding-reference-overload)
  template <class All>
    requires(std::convertible_to<All, View> && !std::same_as<std::remove_cvref_t<All>, ColumnSums>)
  ColumnSums(All&& all) : sums(std::forward<All>(all)) {}
  // NOLINTEND(google-explicit-constructor,bugprone-forwarding-reference-overload)
  ColumnSums(const ConstView& named, const View& s) : rows(named), sums(s) {}
};

// Set a buffer to request a result. `out` has q's dtype; keys are integers; all others have the
// accumulator's dtype: float64 for float64 inputs, else float32. A new member also goes into
// kResults.
struct Outputs {
  View out{};                // [B,H,Tq,E]
  View lse{};                // [B,H,Tq] natural log of the sum of exponentials, sink included
  View row_max{};            // [B,H,Tq] largest score after masks, sink included
  View entropy{};            // [B,H,Tq] -sum_j w_ij ln w_ij over the keys, before dropout
  ColumnSums column_sums{};  // [B,H,Tk] weights summed over queries
  View value_sums{};         // [B,H,Tk] |v_j| times the sums over the queries in column_sums.rows
  // [B,H,m,n] for any m, n >= 1. Cell (r, c) is the mean, over the queries with floor(i*m/Tq) = r,
  // of a query's summed weights for the keys with floor(j*n/Tk) = c. B counts packed sequences.
  View pooled{};
  Top top{};               // the largest weights of each query
  Rows weights{};          // [B,H,Tq or R,Tk] before dropout
  Rows dropped_weights{};  // weights after dropout
  Rows raw_scores{};       // scores after the scale
  Rows capped_scores{};    // scores after the soft-cap
  Rows masked_scores{};    // scores after mods, bias, ALiBi and masks; -inf where masked
};

// ---- the list -------------------------------------------------------------------------------

// The axes of a result, without those of the batch and the heads.
enum class ResultAxes {
  kValues,   // [Tq,E], of q's dtype
  kQueries,  // [Tq]
  kKeys,     // [Tk], summed over the queries in column_sums.rows
  kCells,    // [m,n]
  kTop,      // [Tq,count], in two buffers
  kMatrix,   // [Tq or R,Tk]; not for packed sequences
};

// The calls that can compute a result.
struct ResultCalls {
  bool without_values = true;  // calls without v
  bool in_pages = false;       // calls with keys in pages
};

// One entry of the list: a member of Outputs, a View, ColumnSums, Top or Rows.
template <class Member>
struct Result {
  constexpr Result(std::string_view its_name, Member Outputs::*its_member, ResultAxes its_axes,
                   ResultCalls its_calls = {})
      : name(its_name), member(its_member), axes(its_axes), calls(its_calls) {}

  std::string_view name;  // in messages
  Member Outputs::*member;
  ResultAxes axes;
  ResultCalls calls;
};

// The list of results, in the order of the members of Outputs. Checks, plans, Python and the
// command line visit it.
inline constexpr std::tuple kResults{
    Result("out", &Outputs::out, ResultAxes::kValues, {.without_values = false, .in_pages = true}),
    Result("lse", &Outputs::lse, ResultAxes::kQueries, {.in_pages = true}),
    Result("row_max", &Outputs::row_max, ResultAxes::kQueries, {.in_pages = true}),
    Result("entropy", &Outputs::entropy, ResultAxes::kQueries),
    Result("column_sums", &Outputs::column_sums, ResultAxes::kKeys),
    Result("value_sums", &Outputs::value_sums, ResultAxes::kKeys, {.without_values = false}),
    Result("pooled", &Outputs::pooled, ResultAxes::kCells),
    Result("top", &Outputs::top, ResultAxes::kTop),
    Result("weights", &Outputs::weights, ResultAxes::kMatrix),
    Result("dropped_weights", &Outputs::dropped_weights, ResultAxes::kMatrix),
    Result("raw_scores", &Outputs::raw_scores, ResultAxes::kMatrix),
    Result("capped_scores", &Outputs::capped_scores, ResultAxes::kMatrix),
    Result("masked_scores", &Outputs::masked_scores, ResultAxes::kMatrix),
};

// Calls f(result) for each entry of the list.
template <class F>
constexpr void for_each_result(const F& f) {
  std::apply([&](const auto&... result) { (f(result), ...); }, kResults);
}

// Calls f(name, buffer) for each buffer of a result, given or absent: "lse", "top.weights",
// "top.keys".
template <class F>
void for_each_buffer(const Outputs& outputs, const F& f) {
  struct Visit {
    const F& f;
    void operator()(std::string_view name, const View& x) const { f(name, x); }
    void operator()(std::string_view name, const ColumnSums& x) const { f(name, x.sums); }
    void operator()(std::string_view name, const Rows& x) const { f(name, x.matrix); }
    void operator()(std::string_view, const Top& x) const {
      f("top.weights", x.weights);
      f("top.keys", x.keys);
    }
  };
  for_each_result([&](const auto& result) { Visit{f}(result.name, outputs.*result.member); });
}

// Calls f(name, rows) for each result that can be restricted to listed queries, also if the list is
// absent.
template <class F>
void for_each_row_list(const Outputs& outputs, const F& f) {
  for_each_result([&](const auto& result) {
    if constexpr (requires { (outputs.*result.member).rows; }) {
      f(result.name, (outputs.*result.member).rows);
    }
  });
}

// The number of buffers.
inline constexpr std::size_t kResultBuffers =
    std::tuple_size_v<decltype(kResults)> + 1;  // top has two

// The size of a struct whose members are those of the list.
template <class... Member>
consteval std::size_t size_with(const std::tuple<Result<Member>...>&) {
  std::size_t size = 0;
  ((size = (size + alignof(Member) - 1) / alignof(Member) * alignof(Member) + sizeof(Member)), ...);
  return (size + alignof(Outputs) - 1) / alignof(Outputs) * alignof(Outputs);
}
static_assert(size_with(kResults) == sizeof(Outputs), "kResults lists every member of Outputs");

// The shapes of a call's results, for allocating buffers: [B,H,Tq,E], [B,H,Tq] and so on, with as
// many axes as the inputs imply. For packed sequences they are [sum Tq,H,E], [H,sum Tq] and
// [H,sum Tk], and `matrix` has rank 0.
struct ResultShapes {
  Dims out{};     // rank 0 if v is absent
  Dims rows{};    // of lse, row_max and entropy; top adds an axis of `count`
  Dims keys{};    // of column_sums and value_sums
  Dims matrix{};  // of weights and scores, all rows; pooled has m and n in place of Tq and Tk
};

}  // namespace qkv

#endif  // QKV_OUTPUTS_H_
