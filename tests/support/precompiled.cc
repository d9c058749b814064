// SPDX-License-Identifier: Apache-2.0
// CMake needs one file of the target that makes precompiled.h.
#include "tests/support/precompiled.h"
