// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_ATTENTION_FROZEN_CALL_H_
#define QKV_TESTS_ATTENTION_FROZEN_CALL_H_

#include <deque>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <qkv/attention.h>

#include "tests/attention/frozen/arrays.h"
#include "tests/attention/frozen/draw.h"
#include "tests/attention/frozen/hash.h"

namespace qkv::test::frozen {

// kMaps: what is made of each row before the score is drawn too (cosine, QK-norm, rotary
// positions).
enum class Family { kScores, kMaps };

// One call of attention() and, for about half of kScores and all of kMaps, of attention_backward(),
// drawn from its family and index alone.
class Call {
 public:
  // One that only needs a name has zeros for numbers.
  Call(Family family, int index, bool only_named = false);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  std::string name() const;
  const std::set<std::string>& features() const { return features_; }
  DType sums() const { return accumulator_of(dtype_); }
  // "dot", "bilinear" or "additive".
  std::string kind() const;
  // Runs it and adds its results. Once per call: gradients may be added to the contents of buffers.
  void run(Context& context, Hash& hash);

 private:
  // Adds a feature to the name.
  void note(const std::string& feature) {
    words_ += " " + feature;
    features_.insert(feature);
  }
  void note_size(const char* letter, Index size) {
    features_.insert(letter + (" " + std::to_string(size)));
  }

  void draw_score();
  void draw_plain_score();
  void draw_mapped_score();
  void draw_sizes();
  Index cost() const;
  bool shrink();
  void draw_inputs();
  void draw_packed_inputs();
  void draw_maps();
  void draw_norm();
  void draw_rotary();
  void draw_options();
  void draw_mods();
  void draw_bias();
  void draw_diagonal();
  void draw_masks();
  void draw_keep();
  void draw_mask_mod();
  void draw_lengths();
  void poison_behind(Index key);
  void plant(const char* name, const View& x);
  void draw_outputs();
  void want_matrix(const char* name, Rows& rows);
  void draw_backward();
  void draw_dweights();

  // An array of numbers, in some memory layout.
  View make(DType dtype, const Dims& shape, double size = 1);
  View lay_out(Tensor values, Order order);
  View whole_numbers(DType dtype, const Dims& shape, Index low, Index high);
  View rows_named(Index count);
  ConstView gain(const char* name, Index heads, Index width);
  ConstView positions(const char* name, Index rows);
  View parameter(const Dims& shape, double size);
  View result(const char* name, DType dtype, const Dims& shape);
  View gradient(const char* name, const ConstView& of);
  View result_or_sum(const char* name, const ConstView& of);
  View own(Tensor tensor);
  Dims with_heads(const Dims& shape);
  Dims broadcastable();

  Family family_;
  int index_;
  bool only_named_;
  Draw draw_;
  Score score_;
  std::string score_name_;
  DType dtype_ = DType::kFloat32;  // of q
  DType keys_ = DType::kFloat32;   // of k and v
  bool packed_ = false;
  Index B = 1, H = 1, G = 1, Tq = 1, Tk = 1, Dq = 1, Dk = 1, E = 1, U = 1;
  Dims matrix_;  // of weights; rank 0: packed
  std::deque<Tensor> tensors_;
  View q_, k_, v_;  // of the inputs, for writing
  Inputs inputs_;
  Options options_;
  Outputs outputs_;
  bool backward_ = false;
  Saved saved_;
  OutputGradients sources_;
  InputGradients gradients_;
  std::vector<View> results_;  // in hashing order
  std::string words_;
  std::set<std::string> features_;
};

}  // namespace qkv::test::frozen

#endif  // QKV_TESTS_ATTENTION_FROZEN_CALL_H_
