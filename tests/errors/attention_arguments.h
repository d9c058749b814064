// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_ERRORS_ATTENTION_ARGUMENTS_H_
#define QKV_TESTS_ERRORS_ATTENTION_ARGUMENTS_H_

#include <cstddef>
#include <initializer_list>
#include <string_view>

#include <qkv/attention.h>

#include "tests/errors/arguments.h"

// The arguments of attention, attention_backward and Plan in the table's notation.
namespace qkv::test {

// Returns the position in `words` of an argument's value ("" if absent). Throws TableError for
// another value.
std::size_t choice(Arguments& a, std::string_view name, std::initializer_list<const char*> words);

Inputs inputs_of(Arguments& a);
MaskMod mask_mod_of(Arguments& a);
Options options_of(Arguments& a);
Outputs outputs_of(Arguments& a);

struct BackwardArrays {
  Saved saved;
  OutputGradients from;
  InputGradients to;
};

BackwardArrays backward_arrays_of(Arguments& a);

// The inputs that the plan is made for: plan.NAME if the call has it, else what the plan is run
// with.
Inputs planned_inputs(Arguments& a, const Inputs& inputs);

}  // namespace qkv::test

#endif  // QKV_TESTS_ERRORS_ATTENTION_ARGUMENTS_H_
