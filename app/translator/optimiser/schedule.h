// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_OPTIMISER_SCHEDULE_H_
#define QKV_TRANSLATOR_OPTIMISER_SCHEDULE_H_

#include <qkv/view.h>

namespace qkv::app {

// The learning rate of each update: it rises linearly for `warmup` updates (Goyal et al. 2017) and
// then falls like an inverse square root (Vaswani et al. 2017, eq. 3, has this form).
struct Schedule {
  double rate = 1e-3;  // the peak
  Index warmup = 0;    // W updates; 0: none
  double decay = 0;    // D updates: u updates after the warm-up the rate is rate / sqrt(1 + u / D);
                       // 0: constant
};

// For update u = 1, 2, ...: rate u / W up to W, rate / sqrt(1 + (u - W) / D) after it. A function
// of the update alone, so stopping and resuming changes nothing. Throws Error for an invalid
// schedule.
double learning_rate(const Schedule& schedule, Index update);

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_OPTIMISER_SCHEDULE_H_
