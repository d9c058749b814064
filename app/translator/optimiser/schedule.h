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
  // D, in updates: from u = W on, update u takes `rate` / sqrt(1 + (u - W) / D); 0: `rate`.
  double decay = 0;
};

// The learning rate of update u = 1, 2, ...: rate u / W if u < W, else rate / sqrt(1 + (u - W) / D)
// or, if D is 0, rate. It depends only on the schedule and u, so that stopping and resuming changes
// nothing. Throws Error for an invalid schedule.
double learning_rate(const Schedule& schedule, Index update);

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_OPTIMISER_SCHEDULE_H_
