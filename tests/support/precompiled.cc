// SPDX-License-Identifier: Apache-2.0
// CMake requires one file in the target that builds precompiled.h.
#include "tests/support/precompiled.h"
