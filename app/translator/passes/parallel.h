// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TRANSLATOR_PASSES_PARALLEL_H_
#define QKV_TRANSLATOR_PASSES_PARALLEL_H_

#include <exception>
#include <vector>

#include <qkv/context.h>

namespace qkv::app {

// Runs f(0), ..., f(count-1) once each on the executor. If some of them throw, the exception of the
// lowest index is rethrown after all have ended.
template <class F>
void for_each_task(const Executor& executor, Index count, const F& f) {
  struct Tasks {
    const F& f;
    std::vector<std::exception_ptr> errors;
  } tasks{f, std::vector<std::exception_ptr>(static_cast<std::size_t>(count))};
  executor.run(
      count,
      [](void* state, Index task) {
        auto& all = *static_cast<Tasks*>(state);
        try {
          all.f(task);
        } catch (...) {
          all.errors[static_cast<std::size_t>(task)] = std::current_exception();
        }
      },
      &tasks);
  for (const std::exception_ptr& error : tasks.errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace qkv::app

#endif  // QKV_TRANSLATOR_PASSES_PARALLEL_H_
