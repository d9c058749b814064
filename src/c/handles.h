// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_C_HANDLES_H_
#define QKV_C_HANDLES_H_

#include <atomic>
#include <memory>
#include <utility>

#include <qkv/attention.h>
#include <qkv/c.h>

namespace qkv::c {

// A context with the flag that stops its calls.
struct StoppableContext {
  explicit StoppableContext(Executor executor) : context(std::move(executor)) {
    context.set_stop_flag(&stop);
  }

  std::atomic<bool> stop{false};
  Context context;
};

}  // namespace qkv::c

// The opaque types of qkv/c.h. A plan shares its context, so the two may be destroyed in any order.

struct qkv_context {  // NOLINT(readability-identifier-naming)
  std::shared_ptr<qkv::c::StoppableContext> shared;
};

struct qkv_plan {  // NOLINT(readability-identifier-naming)
  qkv_plan(std::shared_ptr<qkv::c::StoppableContext> its_context, qkv::Plan its_plan)
      : shared(std::move(its_context)), plan(std::move(its_plan)) {}

  std::shared_ptr<qkv::c::StoppableContext> shared;
  qkv::Plan plan;
};

#endif  // QKV_C_HANDLES_H_
