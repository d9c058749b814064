// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_RUNTIME_CONTEXT_STATE_H_
#define QKV_RUNTIME_CONTEXT_STATE_H_

#include <atomic>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <qkv/context.h>
#include <qkv/view.h>

#include "runtime/block.h"

namespace qkv::detail {

// The state of a Context: executor, flags and scratch memory.
struct ContextState {
  explicit ContextState(Executor e)
      : executor(std::move(e)), others(static_cast<std::size_t>(executor.concurrency() - 1)) {}

  runtime::Block& worker(Index index) noexcept {
    return index == 0 ? first : others[static_cast<std::size_t>(index - 1)];
  }
  // Reserves `shared_bytes` and, for each worker, `worker_bytes`, for the call that holds the
  // context. Throws std::bad_alloc.
  void reserve(std::size_t shared_bytes, std::size_t worker_bytes);
  void release() noexcept;

  Executor executor;
  std::atomic<bool> in_use{false};
  const std::atomic<bool>* stop = nullptr;
  std::string forced_path;
  std::atomic<std::size_t> held{0};  // bytes of all blocks
  runtime::Block shared;
  runtime::Block first;  // of worker 0; a member, so that a serial context is one allocation
  std::vector<runtime::Block> others;  // of workers 1, 2, ...
  runtime::Block lendable;  // memory that outlives calls; empty while a BorrowedMemory has it

  void count_held() noexcept;
};

}  // namespace qkv::detail

#endif  // QKV_RUNTIME_CONTEXT_STATE_H_
