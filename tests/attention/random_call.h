// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_ATTENTION_RANDOM_CALL_H_
#define QKV_TESTS_ATTENTION_RANDOM_CALL_H_

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <qkv/attention.h>

#include "core/problem.h"
#include "tests/attention/scores.h"
#include "tests/support/arrays.h"

// Random calls over every shape, memory layout, option, output and special value. Every compiler
// and standard library must draw equal calls, because hashes of their results are kept
// (result_hashes_test.cc); a change that draws other calls has to write the hashes again.
namespace qkv::test {

// The parts of one random call, which depend on (seed, index, draw) alone.
class RandomCall {
 public:
  // kBFloat16: dot products of bfloat16, for which some targets have products of their own.
  // kDecode: `out` and lse of up to 16 query rows for each key head, which read 300 to 3,000 keys
  // as they are stored. kMaps: RandomBackward adds QK-norm, rotary positions or both.
  enum class Draw { kAnything, kBFloat16, kDecode, kMaps };
  RandomCall(std::uint64_t seed, std::uint64_t index, Draw draw = Draw::kAnything);
  RandomCall(const RandomCall&) = delete;
  RandomCall& operator=(const RandomCall&) = delete;

  const Inputs& inputs() const { return inputs_; }
  const Options& options() const { return options_; }
  ScoreKind score() const { return score_; }
  DType dtype() const { return dtype_; }
  DType sums() const { return accumulator_of(dtype_); }
  // The names of everything that was drawn: options, outputs, shapes, numbers. They are counted.
  const std::set<std::string>& features() const { return features_; }
  bool has(const std::string& feature) const { return features_.count(feature) != 0; }
  // A one-line description: dtype, shapes, features.
  std::string describe() const;
  // All arrays that must not be written to.
  const std::deque<Guarded>& arrays() const { return arrays_; }

  // A requested output: its array, and the rows of a matrix.
  struct Wanted {
    DType dtype;
    Dims shape;
    Layout layout;
    std::string rows;  // the list of row indices, a key of row_lists(); empty: all rows
  };
  const std::map<std::string, Wanted>& wanted() const { return wanted_; }
  ConstView row_list(const std::string& name) const { return row_lists_.at(name); }
  // The queries that column_sums and value_sums sum over; absent: all queries.
  ConstView column_rows() const {
    return row_lists_.count("column_sums.rows") != 0 ? row_list("column_sums.rows") : ConstView();
  }
  Index top() const { return top_; }

  Index B = 1, H = 1, G = 1, Tq = 1, Tk = 1, Dq = 1, Dk = 1, E = 1, U = 1;
  Dims weights_shape;  // [..,Tq,Tk], or empty when packed

 private:
  bool chance(double p) { return random_.chance(p); }
  Index whole(Index low, Index high) { return random_.whole(low, high); }
  template <class T, std::size_t n>
  T one_of(const T (&list)[n]) {
    return random_.one_of(list);
  }
  void note(const std::string& feature) { features_.insert(feature); }
  bool decodes() const { return draw_ == Draw::kDecode; }

  // Magnitudes with a name: the standard deviations of the numbers in a call's arrays.
  struct Numbers {
    const char* name;
    double q, k, v;
    double projected = 1;  // deviation of projections of q or k with deviation 1
    double score_v = 1;    // about the norm of the additive v
  };

  void draw_type();
  void draw_sizes();
  void draw_decode_sizes();
  bool too_long(Index limit) const;
  void draw_inputs();
  void draw_packed_inputs();
  void draw_kind();
  void draw_numbers();
  void draw_near_rows();
  // The offset in memory of the element with the index `flat` in C order, counted in elements.
  static Index offset_of_element(const View& x, Index flat);
  static void store_at(const View& x, Index flat, double value);
  void plant(const View& x, const std::string& name, Index first_row);
  void draw_options();
  void draw_score();
  Guarded& make_parameter(const char* name, const Dims& shape, double deviation);
  Additive draw_additive();
  void draw_bias();
  void draw_diagonal();
  void draw_masks();
  void draw_keep();
  void draw_lengths();
  void draw_outputs();
  void want_matrix(const std::string& name);

  Layout layout(Index elements, bool input);
  Guarded& make(DType dtype, const Dims& shape);
  Guarded& make_list(DType dtype, const Dims& shape);
  ConstView make_heads(DType dtype, const Dims& shape, const std::string& name);
  Dims broadcastable();
  Dims results(Index last, Index width) const;

  Random random_;
  Draw draw_;
  ScoreKind score_ = ScoreKind::kDot;
  Numbers numbers_{};
  DType dtype_ = DType::kFloat32;
  Dims batch_;         // batch axes
  bool heads_ = true;  // results have a head axis
  bool packed_ = false;
  std::deque<Guarded> arrays_;
  std::vector<View> writable_;  // q, k, v
  Inputs inputs_;
  Options options_;
  std::set<std::string> features_;
  std::map<std::string, Wanted> wanted_;
  std::map<std::string, ConstView> row_lists_;
  Index top_ = 0;
};

// The buffers of one run, filled with a number that no result has, and Outputs that refer to them.
class Results {
 public:
  Results(const RandomCall& call, double sentinel);

  const Outputs& outputs() const { return outputs_; }
  bool has(const std::string& name) const { return arrays_.count(name) != 0; }
  ConstView view(const std::string& name) const { return arrays_.at(name).view(); }
  const std::map<std::string, Guarded>& arrays() const { return arrays_; }

 private:
  Outputs outputs_;
  std::map<std::string, Guarded> arrays_;
};

}  // namespace qkv::test

#endif  // QKV_TESTS_ATTENTION_RANDOM_CALL_H_
