// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_OPTIMISER_SCHEDULE_H_
#define QKV_TRANSLATOR_OPTIMISER_SCHEDULE_H_

#include <qkv/view.h>

namespace qkv::app {

// The learning rate of each update: it rises linearly for `warmup` updates (Goyal et al. 2017) and
// then falls with an inverse square root (as in Vaswani et al. 2017, eq. 3).
struct Schedule {
  double rate = 1e-3;  // the peak, above 0
  Index warmup = 0;    // W updates; 0: no warm-up
  // D, in updates: update u has the rate rate / sqrt(1 + (u - W) / D) from W on; 0: constant.
  double decay = 0;
};

// The rate of update u = 1, 2, ...: rate u / W before W, rate / sqrt(1 + (u - W) / D) from W on. It
// depends on the update alone, so that stopping and resuming changes nothing. Throws Error for an
// invalid schedule.
double learning_rate(const Schedule& schedule, Index update);

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_OPTIMISER_SCHEDULE_H_
