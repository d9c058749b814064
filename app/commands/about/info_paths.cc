// SPDX-License-Identifier: Apache-2.0

#include <fmt/format.h>

#include <qkv/attention.h>
#include <qkv/tensor.h>

#include "commands/about/info.h"
#include "commands/shell/score_names.h"

namespace {

using qkv::DType;
using qkv::Index;
using qkv::Tensor;

// The sizes of the sample calls: small, and all different except kB = kG. The choice of
// the implementation does not depend on sizes.
constexpr Index kB = 2, kH = 4, kG = 2, kTq = 3, kTk = 5, kD = 8, kE = 6, kU = 7;

struct DTypes {
  DType q;
  DType kv;
};

// All pairs of q's dtype and that of k and v that the library accepts, except q8 keys and values.
std::vector<DTypes> all_dtypes() {
  std::vector<DTypes> all;
#define QKV_REAL(name, type, text) \
  if (qkv::is_real(DType::name)) all.push_back({DType::name, DType::name});
  QKV_FOR_EACH_DTYPE(QKV_REAL)
#undef QKV_REAL
  for (const DType kv : {DType::kBFloat16, DType::kFloat16}) all.push_back({DType::kFloat32, kv});
  return all;
}

std::string name_of(const DTypes& dtypes) {
  const std::string q(qkv::name_of(dtypes.q));
  return dtypes.q == dtypes.kv ? q : fmt::format("{}+{}", q, qkv::name_of(dtypes.kv));
}

// The inputs and options of a sample call, and the arrays that their views point into.
struct Sample {
  explicit Sample(const DTypes& dtypes)
      : q(dtypes.q, {kB, kH, kTq, kD}),
        k(dtypes.kv, {kB, kH, kTk, kD}),
        v(dtypes.kv, {kB, kH, kTk, kE}),
        fewer_k(dtypes.kv, {kB, kG, kTk, kD}),
        fewer_v(dtypes.kv, {kB, kG, kTk, kE}),
        packed_q(dtypes.q, {kB * kTq, kH, kD}),
        packed_k(dtypes.kv, {kB * kTk, kH, kD}),
        packed_v(dtypes.kv, {kB * kTk, kH, kE}),
        w(dtypes.q, {kD, kD}),
        wq(dtypes.q, {kU, kD}),
        wk(dtypes.q, {kU, kD}),
        units(dtypes.q, {kU}),
        bias(dtypes.q, {kTq, kTk}),
        per_head(dtypes.q, {kH}) {
    inputs = {q, k, v, {}, {}};
  }

  Tensor q, k, v, fewer_k, fewer_v, packed_q, packed_k, packed_v, w, wq, wk, units, bias, per_head;
  Tensor keep{DType::kBool, {kTq, kTk}};
  Tensor padding{DType::kBool, {kB, kTk}};
  std::vector<Index> lengths = std::vector<Index>(kB, kTk);
  std::vector<Index> seqlens_q = {0, kTq, kB* kTq};
  std::vector<Index> seqlens_k = {0, kTk, kB* kTk};
  qkv::Inputs inputs;
  qkv::Options options;
};

// A family of options: its name in the report, and the function that adds it to a sample call.
struct Family {
  std::string_view name;
  void (*apply)(Sample& s);
};

constexpr Family kFamilies[] = {
    {"plain", [](Sample&) {}},
    {"grouped heads", [](Sample& s) { s.inputs.k = s.fewer_k, s.inputs.v = s.fewer_v; }},
    {"no values", [](Sample& s) { s.inputs.v = {}; }},
    {"packed",
     [](Sample& s) {
       s.inputs = {s.packed_q, s.packed_k, s.packed_v, s.seqlens_q, s.seqlens_k};
     }},
    {"soft-cap", [](Sample& s) { s.options.softcap = 30; }},
    {"user's score",
     [](Sample& s) {
       s.options.mods = {qkv::score_mod([](auto score, qkv::At) { return score; })};
     }},
    {"bias", [](Sample& s) { s.options.bias = s.bias; }},
    {"ALiBi", [](Sample& s) { s.options.alibi = s.per_head; }},
    {"causal", [](Sample& s) { s.options.masks = {qkv::Causal{}}; }},
    {"window",
     [](Sample& s) {
       s.options.masks = {qkv::Window{1, 1}};
     }},
    {"mask", [](Sample& s) { s.options.masks = {qkv::Keep{s.keep}}; }},
    {"padding", [](Sample& s) { s.options.masks = {qkv::Padding{s.padding}}; }},
    {"key lengths", [](Sample& s) { s.options.masks = {qkv::KeyLengths{s.lengths}}; }},
    {"user's mask",
     [](Sample& s) { s.options.masks = {qkv::mask_mod([](qkv::At at) { return at.j <= at.i; })}; }},
    {"sinks", [](Sample& s) { s.options.sinks = s.per_head; }},
    {"dropout",
     [](Sample& s) {
       s.options.dropout = {0.1, 7};
     }},
};

template <class S>
  requires(!qkv::has_parameters<S>())
qkv::Score filled(const S& score, const Sample&) {
  return score;
}
qkv::Score filled(const qkv::Bilinear&, const Sample& s) { return qkv::Bilinear{s.w}; }
qkv::Score filled(const qkv::Additive&, const Sample& s) {
  return qkv::Additive{s.wq, s.wk, s.units, {}};
}

}  // namespace

std::vector<PathFact> path_facts() {
  std::vector<PathFact> facts;
  qkv::Context context;
  for (const Choice<qkv::Score>& score : kScores) {
    for (const Family& family : kFamilies) {
      for (const DTypes& dtypes : all_dtypes()) {
        Sample sample(dtypes);
        sample.options.score =
            std::visit([&](const auto& one) { return filled(one, sample); }, score.value);
        family.apply(sample);
        const qkv::Plan plan(sample.inputs, sample.options, context);
        facts.push_back({score.name, family.name, name_of(dtypes), std::string(plan.path()),
                         std::string(plan.backward_path())});
      }
    }
  }
  return facts;
}
