// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TOOLS_DEMO_H_
#define QKV_TOOLS_DEMO_H_

#include "seed_numbers.h"

// The numbers printed in the four seed documents, each computed again.
SeedReport seed_numbers();

#endif  // QKV_TOOLS_DEMO_H_
