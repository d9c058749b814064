// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_ERRORS_CALLS_H_
#define QKV_TESTS_ERRORS_CALLS_H_

#include "tests/errors/arguments.h"

namespace qkv::test {

// Reads the arguments of the function named by `arguments` and returns the call, which may be made
// once while `arguments` lives. Throws TableError for an unknown function.
Call prepare(Arguments& arguments);

// prepare() for functions of attention, and for functions of arrays alone. Each returns null for
// any other function.
Call prepare_attention(Arguments& arguments);
Call prepare_arrays(Arguments& arguments);

}  // namespace qkv::test

#endif  // QKV_TESTS_ERRORS_CALLS_H_
