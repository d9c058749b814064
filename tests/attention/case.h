// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_ATTENTION_CASE_H_
#define QKV_TESTS_ATTENTION_CASE_H_

#include <map>
#include <string>
#include <vector>

#include <qkv/attention.h>
#include <qkv/tensor.h>

// The cases that tests/oracle.py writes, and the calls made from them. tests/oracle.py describes
// the format; this reader shares no code with it.
namespace qkv::test {

struct Array {
  std::string dtype;  // f64, i64 or bool
  Dims shape;
  std::vector<double> values;  // C order
};

struct Case {
  std::string name;
  std::vector<std::vector<std::string>> settings;  // "set" lines: key and values
  std::map<std::string, Array> in, want;           // by name

  // The values of a setting, empty if absent.
  std::vector<std::string> setting(const std::string& key) const;
  bool has(const std::string& input) const { return in.count(input) != 0; }
};

// Returns all cases of a file. Throws std::runtime_error that names FILE:LINE if a line is wrong.
std::vector<Case> read_cases(const std::string& path);

// The call of a case: its inputs, its options and all its `in` arrays, dout and the like included,
// as tensors. Real arrays have the dtype `real`, except that dlse, dweights and drow_weights have
// the accumulator's, and frequencies float64.
class CaseCall {
 public:
  CaseCall(const Case& c, DType real);
  CaseCall(const CaseCall&) = delete;
  CaseCall& operator=(const CaseCall&) = delete;

  const Inputs& inputs() const { return inputs_; }
  const Options& options() const { return options_; }
  // The tensor of an input, or an absent view if the case has none.
  ConstView input(const std::string& name) const;
  // The tensor of an input, to be written to; null if the case has none.
  Tensor* tensor(const std::string& name);

  // A zeroed tensor with the shape of an expected array and the dtype that it has in this call.
  Tensor result(const std::string& name) const;

 private:
  void set_row_options();
  void set_score();
  void set_masks();
  void set_mods();

  const Case& case_;
  DType real_;
  std::map<std::string, Tensor> tensors_;
  Inputs inputs_;
  Options options_;
};

// All expected forward results of a case, computed by attention().
std::map<std::string, Tensor> run_forward(const Case& c, const CaseCall& call, Context& context);
// The Outputs that request all expected forward results, whose tensors are added to `results`.
// Weights of listed rows are not requested if all weights are, and sums of listed rows never:
// run_forward() makes a second call for them.
Outputs ask_for(const Case& c, const CaseCall& call, std::map<std::string, Tensor>& results);

// All expected gradients, computed by attention_backward() from `out` and `lse` of `forward`.
std::map<std::string, Tensor> run_backward(const Case& c, const CaseCall& call,
                                           const std::map<std::string, Tensor>& forward,
                                           Context& context);

// Whether the name of an expected array is that of a gradient.
bool is_gradient(const std::string& name);

}  // namespace qkv::test

#endif  // QKV_TESTS_ATTENTION_CASE_H_
