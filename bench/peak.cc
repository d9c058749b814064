// SPDX-License-Identifier: Apache-2.0
#include "peak.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include <qkv/target.h>

namespace qkv::bench {
namespace {

// Runs one task for each thread; all at the same time if all threads are awake.
class Team {
 public:
  explicit Team(int threads)
      : threads_(threads), executor_(threads == 1 ? Executor() : Executor::threads(threads)) {}

  // Calls task(n) for n from 0 to threads() - 1.
  template <class Task>
  void run(const Task& task) const {
    const auto body = [](void* state, Index n) { (*static_cast<const Task*>(state))(n); };
    executor_.run(threads_, body, const_cast<Task*>(&task));
  }
  int threads() const noexcept { return threads_; }

 private:
  int threads_;
  Executor executor_;
};

// ---- reads ----------------------------------------------------------------------------------

// Reads eight lines of 64 bytes at a time and prefetches 16 KiB ahead: by experiment as fast as one
// core can read. The compiler splits Vector to the width of the function's target.
constexpr std::size_t kLine = 64;
constexpr std::size_t kLines = 8;
constexpr std::size_t kAhead = 16384;
using Vector [[gnu::vector_size(64)]] = std::uint64_t;

[[gnu::always_inline]] inline std::uint64_t read_lines(Bytes bytes) {
  Vector sums[kLines] = {};
  const std::size_t block = kLine * kLines;
  for (std::size_t n = 0; n + block <= bytes.size(); n += block) {
    const std::byte* data = bytes.data() + n;
    for (std::size_t line = 0; line < kLines; ++line) {
      __builtin_prefetch(data + kAhead + line * kLine);
      Vector value;
      std::memcpy(&value, data + line * kLine, sizeof value);
      sums[line] ^= value;
    }
  }
  std::uint64_t all = 0;
  for (const Vector& sum : sums) {
    for (int lane = 0; lane < 8; ++lane) all ^= sum[lane];
  }
  return all;
}

std::uint64_t read_plain(Bytes bytes) { return read_lines(bytes); }
#if defined(__x86_64__)
[[gnu::target("avx2")]] std::uint64_t read_avx2(Bytes bytes) { return read_lines(bytes); }
[[gnu::target("avx512f")]] std::uint64_t read_avx512(Bytes bytes) { return read_lines(bytes); }
#endif

using Read = std::uint64_t (*)(Bytes);

Read widest_read() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return read_avx512;
  if (__builtin_cpu_supports("avx2")) return read_avx2;
#endif
  return read_plain;
}

// Part n of an array that is split into `parts` equal parts; a remainder is left out.
Bytes part_of(Bytes bytes, Index n, int parts) {
  const std::size_t size = bytes.size() / static_cast<std::size_t>(parts);
  return bytes.subspan(static_cast<std::size_t>(n) * size, size);
}

}  // namespace

std::string peak_target() {
  const auto targets = cpu_targets();
  const auto used = std::ranges::find(targets, cpu_target());
  if (used == targets.end()) return "";
  // The target "reference" has no peak: its kernels are compared with the best target's peak.
  const std::string_view target = *used == "reference" ? targets.front() : *used;
  return target == "reference" ? "" : std::string(target);
}

Peak multiply_add_peak(const std::string& target, DType dtype, int threads) {
  // On several threads a repetition takes 10 ms or more, so that waking them hardly counts.
  const Index rounds = threads == 1 ? 100'000 : 3'000'000;
  // BF16 has a peak of its own if the target has products of BF16; otherwise types of 16 bits are
  // compared with the peak of float32.
  const bool has_products = target == "avx512bf16" || target.starts_with("amx");
  const DType of =
      (dtype == DType::kBFloat16 && has_products) || size_of(dtype) > 2 ? dtype : DType::kFloat32;
  const double each = multiply_add_burst(target, of, rounds);
  const auto team = std::make_shared<const Team>(threads);
  const auto run = [=] { team->run([&](Index) { multiply_add_burst(target, of, rounds); }); };
  return {{run, kPeakBursts}, each * threads};
}

Peak read_peak(const std::vector<Bytes>& arrays, int threads) {
  double all = 0;
  for (const Bytes& bytes : arrays) all += static_cast<double>(bytes.size());
  const auto team = std::make_shared<const Team>(threads);
  const Read read = widest_read();
  const auto run = [=] {
    team->run([&](Index n) {
      std::uint64_t sum = 0;
      for (const Bytes& bytes : arrays) sum ^= read(part_of(bytes, n, threads));
      // An observable use of the sum, so that no read is optimised away.
      static std::atomic<std::uint64_t> sink = 0;
      sink.fetch_xor(sum, std::memory_order_relaxed);
    });
  };
  return {{run, kPeakBursts}, all};
}

}  // namespace qkv::bench
