// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_C_AS_C_H_
#define QKV_TESTS_C_AS_C_H_

#include <optional>

#include <qkv/attention.h>
#include <qkv/c.h>

// Converts the arguments of C++ calls to those of the calls of qkv/c.h.
namespace qkv::test {

// Returns a struct of zeros for an absent array. Throws std::invalid_argument for complex128.
qkv_tensor as_c(const ConstView& view);
// Throws std::invalid_argument for a shard of the heads.
qkv_inputs as_c(const Inputs& inputs);
// Returns nothing for options that C lacks: functions, and two masks of one kind.
std::optional<qkv_options> as_c(const Options& options);
qkv_outputs as_c(const Outputs& outputs);
qkv_saved as_c(const Saved& saved);
qkv_output_gradients as_c(const OutputGradients& gradients);
// Throws std::invalid_argument for gradients of captured arrays.
qkv_input_gradients as_c(const InputGradients& gradients);

}  // namespace qkv::test

#endif  // QKV_TESTS_C_AS_C_H_
