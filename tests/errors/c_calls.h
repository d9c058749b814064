// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_ERRORS_C_CALLS_H_
#define QKV_TESTS_ERRORS_C_CALLS_H_

#include "tests/errors/calls.h"

namespace qkv::test {

// Returns the call through qkv/c.h. An error of kind value or type that C reports is thrown as
// Error. Returns null for functions and arguments that C lacks, and for a context in use, which
// needs a user's function.
Call prepare_in_c(Arguments& arguments);

// Whether prepare_in_c() makes the call of a row.
bool is_in_c(const Row& row);

}  // namespace qkv::test

#endif  // QKV_TESTS_ERRORS_C_CALLS_H_
