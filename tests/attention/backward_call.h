// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_ATTENTION_BACKWARD_CALL_H_
#define QKV_TESTS_ATTENTION_BACKWARD_CALL_H_

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <qkv/attention.h>

#include "tests/attention/paths.h"
#include "tests/attention/random_call.h"

// Calls of attention_backward whose results are compared between paths.
namespace qkv::test {

// The paths, other than the reference, whose backward pass supports a plain float32 call with a
// score of this kind.
std::vector<std::string> fast_backward_paths(ScoreKind kind = ScoreKind::kDot);
// The paths of fast_backward_paths(), and the reference.
std::vector<std::string> all_backward_paths(ScoreKind kind = ScoreKind::kDot);
// Whether the path has a backward pass for this call.
bool takes_backward(std::string_view path, const Inputs& inputs, const Options& options);

// A call of attention_backward(), without the results that the forward pass saves.
struct BackwardCall {
  // A requested gradient. Its name is that of an array: "q", "k", "v", "bias", "alibi" or "sinks";
  // of a parameter of the score: "w", "wq", "wk", "score_v" or "score_b"; or of a gain: "norm_q" or
  // "norm_k".
  struct Asked {
    DType dtype;
    Dims shape;
    Layout layout;
  };

  Inputs inputs{};
  Options options{};
  OutputGradients sources{};
  std::map<std::string, Asked> asked{};
  Write write = Write::kOverwrite;
  int threads = 1;

  // Requests the gradient with that name.
  void ask(const std::string& name, Layout layout);
  // The names of all gradients. askable() returns, in this order, the names of those whose arrays
  // the call has.
  static constexpr std::array kNames{"q",  "k",  "v",       "bias",    "alibi",  "sinks", "w",
                                     "wq", "wk", "score_v", "score_b", "norm_q", "norm_k"};
  static std::vector<std::string> askable(const Inputs& inputs, const Options& options);
  // The array of the call whose gradient has this name; absent if the call has none.
  static ConstView source_of(const std::string& name, const Inputs& inputs, const Options& options);
};

// The results that a path's forward pass saves for a call.
struct SavedTensors {
  SavedTensors(const BackwardCall& call, std::string_view path);
  Saved views() const;
  bool same_bits_as(const SavedTensors& other) const;

  Tensor out, lse;
};

// The gradient buffers of one run. Before it, they hold -777, a number that no gradient has, or,
// with Write::kAccumulate, random numbers that are equal in every run.
class Gradients {
 public:
  explicit Gradients(const BackwardCall& call);

  const InputGradients& views() const { return views_; }
  const std::map<std::string, Guarded>& arrays() const { return arrays_; }
  // Sets every element of every buffer, and of before().
  void fill(double value);
  // The numbers that the buffer of this gradient holds before the run, in C order.
  const std::vector<double>& before(const std::string& name) const { return before_.at(name); }

 private:
  std::map<std::string, Guarded> arrays_;
  std::map<std::string, std::vector<double>> before_;
  InputGradients views_;
};

// Runs the call on a path.
void run_backward(const BackwardCall& call, std::string_view path, const Saved& saved,
                  const Gradients& gradients);

// A RandomCall, forward(), with its backward pass, call(). Random are the given gradients (dout,
// dlse, dweights), the requested gradients, their layouts, and whether they are accumulated. call()
// may have a bias that forward() lacks and, with Draw::kMaps, has input transforms of q and k that
// forward() lacks. All depends on (seed, index, draw) alone.
class RandomBackward {
 public:
  RandomBackward(std::uint64_t seed, std::uint64_t index,
                 RandomCall::Draw draw = RandomCall::Draw::kAnything);
  RandomBackward(const RandomBackward&) = delete;
  RandomBackward& operator=(const RandomBackward&) = delete;

  const RandomCall& forward() const { return forward_; }
  const BackwardCall& call() const { return call_; }
  const std::set<std::string>& features() const { return features_; }
  // Whether gradients may be NaN on one path and infinite on another: v or a given gradient has an
  // infinity, v has numbers of about 1e30, or an additive score has an infinity in q, k or a
  // parameter.
  bool overflows() const;
  std::string describe() const;
  // Succeeds if no byte around or between the elements of any input was written.
  testing::AssertionResult intact() const;

 private:
  bool chance(double p) { return random_.chance(p); }
  Index whole(Index low, Index high) { return random_.whole(low, high); }
  Layout layout(Index elements);
  View draw(const char* name, DType dtype, const Dims& shape);
  void draw_maps();
  ConstView draw_gain(const char* name, Index heads, Index width);
  ConstView draw_positions(Index rows);
  void draw_bias();
  void draw_sources();
  void draw_weights(const Dims& matrix);
  void draw_asked();

  RandomCall forward_;
  Random random_;
  std::deque<Guarded> arrays_;
  BackwardCall call_;
  std::set<std::string> features_;
};

}  // namespace qkv::test

#endif  // QKV_TESTS_ATTENTION_BACKWARD_CALL_H_
