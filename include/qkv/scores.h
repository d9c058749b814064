// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_SCORES_H_
#define QKV_SCORES_H_

#include <cmath>
#include <string_view>
#include <variant>

#include <qkv/export.h>
#include <qkv/view.h>

// The scores. Each type has its name, which Python and the command line use too, its default scale,
// and its parameters with their gradients: for_each_parameter(f) calls f(name, value, gradient)
// with pointers to members. Letters: H query heads, D query/key width (Dq, Dk where they differ), U
// units.
namespace qkv {

// s_ij = q_i . k_j / sqrt(D)   Vaswani et al. 2017, eq. 1.
struct ScaledDot {
  static constexpr std::string_view kName = "scaled_dot";
  using Gradient = std::monostate;
  static double default_scale(Index D) { return 1 / std::sqrt(static_cast<double>(D)); }
  template <class F>
  static constexpr void for_each_parameter(const F&) {}
};

// s_ij = q_i . k_j             Luong et al. 2015, section 3.1, "dot".
struct Dot {
  static constexpr std::string_view kName = "dot";
  using Gradient = std::monostate;
  static double default_scale(Index) { return 1; }
  template <class F>
  static constexpr void for_each_parameter(const F&) {}
};

// s_ij = q_i . k_j / (|q_i| |k_j|)   Graves et al. 2014, eq. 6; 0 if q_i or k_j is zero.
struct Cosine {
  static constexpr std::string_view kName = "cosine";
  using Gradient = std::monostate;
  static double default_scale(Index) { return 1; }
  template <class F>
  static constexpr void for_each_parameter(const F&) {}
};

struct BilinearGradient {
  View w{};
};

// s_ij = (q_i^T W) . k_j       Luong et al. 2015, section 3.1, "general".
struct Bilinear {
  ConstView w{};  // [Dq,Dk] or one per head [H,Dq,Dk]

  static constexpr std::string_view kName = "bilinear";
  using Gradient = BilinearGradient;
  static double default_scale(Index) { return 1; }
  template <class F>
  static constexpr void for_each_parameter(const F& f) {
    f("W", &Bilinear::w, &BilinearGradient::w);
  }
};

struct AdditiveGradient {
  View wq{};
  View wk{};
  View v{};
  View b{};
};

// s_ij = sum_u v_u tanh((Wq q_i + b)_u + (Wk k_j)_u)   Bahdanau et al. 2015, appendix A.1.2.
struct Additive {
  ConstView wq{};  // [U,Dq] or [H,U,Dq]
  ConstView wk{};  // [U,Dk] or [H,U,Dk]
  ConstView v{};   // [U] or [H,U]
  ConstView b{};   // [U] or [H,U]; may be absent

  // Makes the parameters of the form v^T tanh(W [k; q]): w [U,Dk+Dq] or [H,U,Dk+Dq] is split after
  // column `key_width`. Throws Error if w is too narrow.
  QKV_API static Additive concat(const ConstView& w, Index key_width, const ConstView& v,
                                 const ConstView& b = {});

  static constexpr std::string_view kName = "additive";
  using Gradient = AdditiveGradient;
  static double default_scale(Index) { return 1; }
  template <class F>
  static constexpr void for_each_parameter(const F& f) {
    f("Wq", &Additive::wq, &AdditiveGradient::wq);
    f("Wk", &Additive::wk, &AdditiveGradient::wk);
    f("v", &Additive::v, &AdditiveGradient::v);
    f("b", &Additive::b, &AdditiveGradient::b);
  }
};

// All scores, and their gradients: std::monostate for a score without parameters.
using Score = std::variant<ScaledDot, Dot, Bilinear, Additive, Cosine>;
using ScoreGradient = std::variant<std::monostate, BilinearGradient, AdditiveGradient>;

// ---- before the score: transforms of each row of q and of k ----------------------------------

struct QkNormGradient {
  View q{};
  View k{};
};

// Normalises queries and keys before the score: each row x becomes g x / sqrt(mean of x_c^2 + eps)
// (Henry et al. 2020, with the RMSNorm of Zhang and Sennrich 2019, eq. 4). An absent gain is 1.
// With eps = 0 a row of zeros stays zero.
struct QkNorm {
  ConstView q{};  // gain [Dq] or one per head [H,Dq]
  ConstView k{};  // gain [Dk] or one per head [G,Dk]
  double eps = 1e-6;

  static constexpr std::string_view kName = "qk_norm";
  using Gradient = QkNormGradient;
  template <class F>
  static constexpr void for_each_parameter(const F& f) {
    f("q", &QkNorm::q, &QkNormGradient::q);
    f("k", &QkNorm::k, &QkNormGradient::k);
  }
};

// How the values of a row are paired for the rotation: (2m, 2m+1) as in the paper and GPT-J, or (m,
// m + width/2) as in GPT-NeoX and Llama.
enum class RotaryPairing { kNeighbours, kHalves };

// Rotary positions (Su et al. 2021, section 3.4.2): pair m of a row at position p is rotated by the
// angle p base^(-2m/width), so that q_i . k_j depends on the difference of positions. By default
// key j has position j and query i has i + o (Options::diagonal).
struct Rotary {
  RotaryPairing pairs = RotaryPairing::kNeighbours;
  double base = 10000;
  Index width = 0;          // even: the number of leading values of a row that are rotated; 0: all
  ConstView frequencies{};  // [width/2], float32 or float64, radians per position; replace base
  ConstView q_positions{};  // integers [Tq] or [B,Tq]; for packed sequences [sum Tq]
  ConstView k_positions{};  // integers [Tk] or [B,Tk]; for packed sequences [sum Tk]

  static constexpr std::string_view kName = "rotary";
  template <class F>
  static constexpr void for_each_array(const F& f) {
    f("frequencies", &Rotary::frequencies);
    f("q_positions", &Rotary::q_positions);
    f("k_positions", &Rotary::k_positions);
  }
};

template <class S>
constexpr bool has_parameters() {
  bool any = false;
  S::for_each_parameter([&](const char*, auto, auto) { any = true; });
  return any;
}
inline bool has_parameters(const Score& score) {
  return std::visit([]<class S>(const S&) { return has_parameters<S>(); }, score);
}

}  // namespace qkv

#endif  // QKV_SCORES_H_
