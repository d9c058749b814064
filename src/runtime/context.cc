// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include <qkv/context.h>

#include "runtime/context_state.h"
#include "runtime/tasks.h"

namespace qkv {

namespace runtime {

void Block::grow(std::size_t bytes) {
  if (bytes <= bytes_) return;
  // A block grows by a quarter or more, so that few calls allocate where each needs a little more,
  // as with a growing key cache.
  const std::size_t wanted = core::padded_bytes(std::max(bytes, bytes_ + bytes_ / 4));
  release();
  memory_ =
      static_cast<std::byte*>(::operator new(wanted, std::align_val_t{core::kScratchAlignment}));
  bytes_ = wanted;
}

void Block::release() noexcept {
  ::operator delete(std::exchange(memory_, nullptr), std::align_val_t{core::kScratchAlignment});
  bytes_ = 0;
}

}  // namespace runtime

namespace detail {

void ContextState::reserve(std::size_t shared_bytes, std::size_t worker_bytes) {
  // The blocks of all workers have the same size: if one cannot grow, all of them are released.
  const runtime::Block& last = others.empty() ? first : others.back();
  if (shared_bytes <= shared.bytes() && worker_bytes <= last.bytes()) return;
  try {
    shared.grow(shared_bytes);
    first.grow(worker_bytes);
    for (runtime::Block& block : others) block.grow(worker_bytes);
  } catch (...) {
    first.release();
    for (runtime::Block& block : others) block.release();
    count_held();
    throw;
  }
  count_held();
}

void ContextState::release() noexcept {
  shared.release();
  first.release();
  for (runtime::Block& block : others) block.release();
  lendable.release();
  count_held();
}

void ContextState::count_held() noexcept {
  std::size_t bytes = shared.bytes() + first.bytes() + lendable.bytes();
  for (const runtime::Block& block : others) bytes += block.bytes();
  held.store(bytes, std::memory_order_relaxed);
}

}  // namespace detail

Context::Context() : Context(Executor()) {}
Context::Context(Executor executor)
    : state_(std::make_unique<detail::ContextState>(std::move(executor))) {}
Context::~Context() = default;
Context::Context(Context&&) noexcept = default;
Context& Context::operator=(Context&&) noexcept = default;

const Executor& Context::executor() const noexcept { return state_->executor; }

void Context::set_stop_flag(const std::atomic<bool>* stop) noexcept { state_->stop = stop; }
const std::atomic<bool>* Context::stop_flag() const noexcept { return state_->stop; }

void Context::force_path(std::string_view name) { state_->forced_path = name; }
const std::string& Context::forced_path() const noexcept { return state_->forced_path; }

std::size_t Context::scratch_bytes() const noexcept {
  return state_->held.load(std::memory_order_relaxed);
}

void Context::release_scratch() noexcept {
  if (state_->in_use.exchange(true, std::memory_order_acquire)) return;
  state_->release();
  state_->in_use.store(false, std::memory_order_release);
}

}  // namespace qkv
