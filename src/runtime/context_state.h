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

namespace qkv::runtime {

// Scratch memory that only grows, aligned to kScratchAlignment, with a size that is a multiple of
// it: two workers never write to the same cache line.
class Block {
 public:
  Block() = default;
  ~Block() { release(); }
  Block(Block&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Block& operator=(Block&&) = delete;

  std::byte* memory() const noexcept { return memory_; }
  std::size_t bytes() const noexcept { return bytes_; }
  // Reserves at least `bytes`; growing discards the contents. On std::bad_alloc it is
  // empty.
  void grow(std::size_t bytes);
  void release() noexcept;

 private:
  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace qkv::runtime

namespace qkv::detail {

// What a Context points to.
struct ContextState {
  explicit ContextState(Executor e)
      : executor(std::move(e)), others(static_cast<std::size_t>(executor.concurrency() - 1)) {}

  runtime::Block& worker(Index index) noexcept {
    return index == 0 ? first : others[static_cast<std::size_t>(index - 1)];
  }
  // For the call that holds the context. Reserves `shared_bytes` and, for each worker,
  // `worker_bytes`; throws std::bad_alloc.
  void reserve(std::size_t shared_bytes, std::size_t worker_bytes);
  void release() noexcept;

  Executor executor;
  std::atomic<bool> in_use{false};
  const std::atomic<bool>* stop = nullptr;
  std::string forced_path;
  std::atomic<std::size_t> held{0};  // bytes of all blocks
  runtime::Block shared;
  runtime::Block first;  // worker 0's, inline: creating a serial context allocates once
  std::vector<runtime::Block> others;

 private:
  void count_held() noexcept;
};

}  // namespace qkv::detail

#endif  // QKV_RUNTIME_CONTEXT_STATE_H_
