// SPDX-License-Identifier: Apache-2.0
#ifndef TOOLS_QKV_DEMO_H_
#define TOOLS_QKV_DEMO_H_

#include "seed_numbers.h"

// The numbers printed in the four seed documents, each computed again.
SeedReport seed_numbers();

#endif  // TOOLS_QKV_DEMO_H_
