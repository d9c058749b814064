// SPDX-License-Identifier: Apache-2.0
// Fibers switch stacks by longjmp(), which the checked longjmp() of glibc takes for an error.
#undef _FORTIFY_SOURCE
#include "tests/cuda/emulator.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <csetjmp>
#include <cstring>
#include <exception>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <vector>

#include <ucontext.h>

#include <qkv/dtype.h>

#include "cuda/device/words.h"

namespace qkv::test {
namespace {

constexpr std::size_t kStackBytes = 128 << 10;

// An asynchronous copy of 16 bytes that has not landed in shared memory.
struct Copy {
  std::uint32_t to;
  std::array<unsigned char, 16> bytes;
};

struct Fiber {
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
  ucontext_t start{};
  std::jmp_buf paused_at{};
  bool started = false;
  bool done = false;
  const char* waits_for = "";
  std::vector<std::vector<Copy>> groups;  // committed, oldest first
  std::vector<Copy> open;                 // not committed
};

// The state of a barrier for meet().
struct Meeting {
  int arrived = 0;
  std::uint64_t generation = 0;  // how often all threads have met
};

struct Machine {
  std::vector<Fiber> fibers;
  std::vector<std::size_t> order;  // in which threads run in a round
  std::jmp_buf scheduler{};
  int current = 0;
  std::int64_t block = 0;
  bool progress = false;
  std::vector<int> delays;  // for each warp, how many rounds it still waits
  std::vector<unsigned char> shared;
  std::mt19937 random;
  const std::function<void()>* kernel = nullptr;
  std::exception_ptr error;

  Meeting block_meeting;
  std::vector<Meeting> warp_meetings;
  bool any = false, any_result = false;
  std::vector<std::array<std::uint32_t, 8>> given;     // what each thread brings to a meeting
  std::vector<std::array<std::uint32_t, 4>> received;  // what each thread gets there
};

Machine* machine = nullptr;

Fiber& self() { return machine->fibers[static_cast<std::size_t>(machine->current)]; }

void run_fiber() {
  Machine& m = *machine;
  try {
    (*m.kernel)();
  } catch (...) {
    if (!m.error) m.error = std::current_exception();
  }
  self().done = true;
  m.progress = true;
  std::longjmp(m.scheduler, 1);
}

void pause(const char* waits_for) {
  Fiber& fiber = self();
  fiber.waits_for = waits_for;
  if (setjmp(fiber.paused_at) == 0) std::longjmp(machine->scheduler, 1);
}

void resume(Fiber& fiber) {
  if (setjmp(machine->scheduler) != 0) return;
  if (fiber.started) std::longjmp(fiber.paused_at, 1);
  fiber.started = true;
  setcontext(&fiber.start);
}

// Waits until `count` threads have called meet(). The last of them runs action() before any
// returns.
template <class Action>
void meet(Meeting& meeting, int count, const char* name, const Action& action) {
  const std::uint64_t generation = meeting.generation;
  if (++meeting.arrived == count) {
    action();
    meeting.arrived = 0;
    ++meeting.generation;
    machine->progress = true;
    return;
  }
  while (meeting.generation == generation) pause(name);
}

int lane() { return machine->current % cuda::kLanes; }
std::size_t warp_start() {
  constexpr std::size_t kWarp = cuda::kLanes;
  return static_cast<std::size_t>(machine->current) / kWarp * kWarp;
}

// Meets the other lanes of the warp; the last one to arrive calls action(first thread of the warp).
template <class Action>
void meet_warp(const char* name, const Action& action) {
  const std::size_t first = warp_start();
  meet(machine->warp_meetings[first / cuda::kLanes], cuda::kLanes, name, [&] { action(first); });
}

unsigned char* shared_at(std::uint32_t at, std::size_t bytes) {
  if (at % (bytes < 16 ? bytes : 16) != 0 || at + bytes > machine->shared.size()) {
    throw std::runtime_error("emulator: shared memory addressed at byte " + std::to_string(at));
  }
  return machine->shared.data() + at;
}

void land(const Copy& copy) { std::memcpy(shared_at(copy.to, 16), copy.bytes.data(), 16); }

// Lets some of the committed copies land.
void land_some(Machine& m) {
  for (Fiber& fiber : m.fibers) {
    for (std::vector<Copy>& group : fiber.groups) {
      if (!group.empty() && m.random() % 8 == 0) {
        land(group.back());
        group.pop_back();
      }
    }
  }
}

// Draws the warps that wait in the next round. Now and then a warp waits for many rounds, as if the
// others ran faster.
void delay_some(Machine& m) {
  for (int& delay : m.delays) {
    if (delay > 0) {
      --delay;
    } else if (m.random() % 128 == 0) {
      delay = static_cast<int>(m.random() % 128);
    }
  }
}

[[noreturn]] void fail_deadlock(const Machine& m) {
  std::string text = "emulator: the threads wait for each other without end:";
  for (std::size_t t = 0; t < m.fibers.size(); t += cuda::kLanes) {
    text += "\n  thread " + std::to_string(t) + ": " +
            (m.fibers[t].done ? "finished" : m.fibers[t].waits_for);
  }
  throw std::runtime_error(text);
}

void run_block(Machine& m, const EmulatedLaunch& launch) {
  m.shared.assign(launch.shared_bytes, 0xFF);
  m.block_meeting = {};
  m.warp_meetings.assign(static_cast<std::size_t>(launch.threads / cuda::kLanes), {});
  m.delays.assign(m.warp_meetings.size(), 0);
  m.any = false;
  for (Fiber& fiber : m.fibers) {
    fiber.started = fiber.done = false;
    fiber.waits_for = "its start";
    fiber.groups.clear();
    fiber.open.clear();
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = fiber.stack.get();
    fiber.start.uc_stack.ss_size = kStackBytes;
    fiber.start.uc_link = nullptr;
    makecontext(&fiber.start, &run_fiber, 0);
  }
  for (bool left = true; left;) {
    left = false;
    m.progress = false;
    delay_some(m);
    std::shuffle(m.order.begin(), m.order.end(), m.random);
    for (const std::size_t t : m.order) {
      if (m.fibers[t].done) continue;
      if (m.delays[t / cuda::kLanes] > 0) {
        left = m.progress = true;
        continue;
      }
      m.current = static_cast<int>(t);
      resume(m.fibers[t]);
      left = left || !m.fibers[t].done;
    }
    if (m.error) std::rethrow_exception(m.error);
    if (left && !m.progress) fail_deadlock(m);
    land_some(m);
  }
}

}  // namespace

// gcc defines a macro for each sanitizer, clang has features.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define QKV_SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define QKV_SANITIZED
#endif
#endif

std::string why_no_emulator() {
#ifdef QKV_SANITIZED
  return "the emulator's threads are fibers, which sanitizers do not follow";
#else
  return "";
#endif
}

void emulate(const EmulatedLaunch& launch, const std::function<void()>& kernel) {
  Machine m;
  m.kernel = &kernel;
  m.random.seed(launch.seed);
  m.fibers.resize(static_cast<std::size_t>(launch.threads));
  m.order.resize(m.fibers.size());
  std::iota(m.order.begin(), m.order.end(), std::size_t{0});
  m.given.resize(m.fibers.size());
  m.received.resize(m.fibers.size());
  machine = &m;
  try {
    for (m.block = 0; m.block < launch.blocks; ++m.block) run_block(m, launch);
  } catch (...) {
    machine = nullptr;
    throw;
  }
  machine = nullptr;
}

}  // namespace qkv::test

// ---- the operations -------------------------------------------------------------------------

namespace qkv::cuda {

using test::machine;
using test::meet_warp;

namespace {

std::array<std::uint32_t, 8>& own_given() {
  return machine->given[static_cast<std::size_t>(machine->current)];
}
std::array<std::uint32_t, 4>& own_received() {
  return machine->received[static_cast<std::size_t>(machine->current)];
}

// Returns y plus an error of up to `most` units in the last place, as the PTX manual permits for an
// approximation. The error depends on x alone.
float off_by(float y, int most, float x) {
  if (!(std::abs(y) >= 0x1p-126F && std::abs(y) < 0x1p127F)) return y;
  const auto draw = static_cast<int>((std::bit_cast<std::uint32_t>(x) * 0x9E3779B9U) >> 16U);
  return std::bit_cast<float>(std::bit_cast<std::int32_t>(y) + draw % (2 * most + 1) - most);
}

float widened_half(std::uint16_t x) { return static_cast<float>(Float16::from_bits(x)); }

}  // namespace

int thread_index() { return machine->current; }
int block_index() { return static_cast<int>(machine->block); }

void sync_threads() {
  test::meet(machine->block_meeting, static_cast<int>(machine->fibers.size()), "sync_threads",
             [] {});
}
bool any_thread(bool x) {
  machine->any = machine->any || x;
  test::meet(machine->block_meeting, static_cast<int>(machine->fibers.size()), "any_thread", [] {
    machine->any_result = machine->any;
    machine->any = false;
  });
  return machine->any_result;
}
void sync_warp() {
  meet_warp("sync_warp", [](std::size_t) {});
}

bool any_lane(bool x) {
  own_given()[0] = x ? 1 : 0;
  meet_warp("any_lane", [](std::size_t first) {
    std::uint32_t any = 0;
    for (std::size_t n = 0; n < kLanes; ++n) any |= machine->given[first + n][0];
    for (std::size_t n = 0; n < kLanes; ++n) machine->received[first + n][0] = any;
  });
  return own_received()[0] != 0;
}

std::uint32_t exchange(std::uint32_t x, int lane_mask) {
  own_given()[0] = x;
  own_given()[1] = static_cast<std::uint32_t>(lane_mask);
  meet_warp("exchange", [](std::size_t first) {
    for (std::size_t n = 0; n < kLanes; ++n) {
      machine->received[first + n][0] =
          machine->given[first + (n ^ machine->given[first + n][1])][0];
    }
  });
  return own_received()[0];
}
float exchange(float x, int lane_mask) {
  return std::bit_cast<float>(exchange(std::bit_cast<std::uint32_t>(x), lane_mask));
}
int exchange(int x, int lane_mask) {
  return std::bit_cast<int>(exchange(std::bit_cast<std::uint32_t>(x), lane_mask));
}

void store_shared(std::uint32_t to, const Words4& x) {
  std::memcpy(test::shared_at(to, 16), x.w, 16);
}
Words4 load_shared_words(std::uint32_t from) {
  Words4 x;
  std::memcpy(x.w, test::shared_at(from, 16), 16);
  return x;
}
void store_shared(std::uint32_t to, std::uint32_t x) { std::memcpy(test::shared_at(to, 4), &x, 4); }
std::uint32_t load_shared(std::uint32_t from) {
  std::uint32_t x = 0;
  std::memcpy(&x, test::shared_at(from, 4), 4);
  return x;
}

void copy_16(std::uint32_t to, const void* from, bool valid) {
  if (reinterpret_cast<std::uintptr_t>(from) % 16 != 0) {
    throw std::runtime_error("emulator: copy_16 of an address that is not a multiple of 16");
  }
  test::Copy copy{to, {}};
  if (valid) std::memcpy(copy.bytes.data(), from, 16);
  if (machine->random() % 4 == 0) {
    test::land(copy);
  } else {
    test::self().open.push_back(copy);
  }
}
void commit_copies() {
  test::Fiber& fiber = test::self();
  fiber.groups.push_back(std::move(fiber.open));
  fiber.open.clear();
}
void wait_for_copies(int left) {
  std::vector<std::vector<test::Copy>>& groups = test::self().groups;
  while (groups.size() > static_cast<std::size_t>(left)) {
    for (const test::Copy& copy : groups.front()) test::land(copy);
    groups.erase(groups.begin());
  }
}

namespace {

template <bool kTransposed>
void load(std::uint32_t (&x)[4], std::uint32_t row) {
  own_given()[0] = row;
  meet_warp(kTransposed ? "load_transposed" : "load_matrices", [](std::size_t first) {
    for (std::size_t matrix = 0; matrix < 4; ++matrix) {
      std::uint16_t rows[8][8];
      for (std::size_t r = 0; r < 8; ++r) {
        std::memcpy(rows[r], test::shared_at(machine->given[first + matrix * 8 + r][0], 16), 16);
      }
      for (std::size_t n = 0; n < kLanes; ++n) {
        const std::size_t own = n / 4;
        const std::size_t pair = n % 4 * 2;
        const std::uint32_t low = kTransposed ? rows[pair][own] : rows[own][pair];
        const std::uint32_t high = kTransposed ? rows[pair + 1][own] : rows[own][pair + 1];
        machine->received[first + n][matrix] = low | high << 16;
      }
    }
  });
  std::copy(own_received().begin(), own_received().end(), x);
}

template <class Tiles>
void multiply(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  // The last lane to arrive collects a and b of all lanes; then each lane computes its own four
  // sums.
  std::array<std::uint32_t, 8>& own = own_given();
  for (std::size_t n = 0; n < 4; ++n) own[n] = a[n];
  own[4] = b0;
  own[5] = b1;
  static float left[64][16][16];
  static float right[64][8][16];
  const std::size_t warp = test::warp_start() / kLanes;
  meet_warp("multiply_add", [warp](std::size_t first) {
    const auto half = [](std::uint32_t pair, std::size_t n) {
      return widened(Tiles{}, static_cast<std::uint16_t>(pair >> (16 * n)));
    };
    for (std::size_t l = 0; l < kLanes; ++l) {
      const std::array<std::uint32_t, 8>& x = machine->given[first + l];
      for (std::size_t e = 0; e < 2; ++e) {
        const std::size_t k = l % 4 * 2 + e;
        left[warp][l / 4][k] = half(x[0], e);
        left[warp][l / 4 + 8][k] = half(x[1], e);
        left[warp][l / 4][k + 8] = half(x[2], e);
        left[warp][l / 4 + 8][k + 8] = half(x[3], e);
        right[warp][l / 4][k] = half(x[4], e);
        right[warp][l / 4][k + 8] = half(x[5], e);
      }
    }
  });
  const auto l = static_cast<std::size_t>(test::lane());
  for (std::size_t e = 0; e < 4; ++e) {
    const float* row = left[warp][l / 4 + e / 2 * 8];
    const float* column = right[warp][l % 4 * 2 + e % 2];
    for (std::size_t k = 0; k < 16; ++k) c[e] += row[k] * column[k];
  }
  // No lane overwrites `left` and `right` before all have read them.
  meet_warp("multiply_add", [](std::size_t) {});
}

}  // namespace

void load_matrices(std::uint32_t (&x)[4], std::uint32_t row) { load<false>(x, row); }
void load_transposed(std::uint32_t (&x)[4], std::uint32_t row) { load<true>(x, row); }
void multiply_add(BFloat16Tiles, float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                  std::uint32_t b1) {
  multiply<BFloat16Tiles>(c, a, b0, b1);
}
void multiply_add(Float16Tiles, float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                  std::uint32_t b1) {
  multiply<Float16Tiles>(c, a, b0, b1);
}

float exp2_of(float x) {
  const float y = off_by(std::exp2(x), x == 0 ? 0 : 2, x);
  return std::abs(y) < 0x1p-126F ? 0.0F : y;
}
float log2_of(float x) { return std::log2(x); }
// Reciprocals of powers of two are exact on hardware, which the manual does not promise.
float reciprocal(float x) {
  int exponent = 0;
  return off_by(1 / x, std::frexp(x, &exponent) == 0.5F ? 0 : 1, x);
}
float square_root(float x) { return std::sqrt(x); }
float divide(float x, float y) { return x / y; }
float rounded_product(float x, float y) { return x * y; }
float rounded_sum(float x, float y) { return x + y; }
float fused(float x, float y, float z) { return std::fma(x, y, z); }
float max_of(float x, float y) { return std::fmax(x, y); }
std::uint32_t rounded_pair(BFloat16Tiles, float low, float high) {
  return BFloat16(low).bits | static_cast<std::uint32_t>(BFloat16(high).bits) << 16;
}
std::uint32_t rounded_pair(Float16Tiles, float low, float high) {
  return Float16(low).bits | static_cast<std::uint32_t>(Float16(high).bits) << 16;
}
float bits_to_float(std::uint32_t x) { return std::bit_cast<float>(x); }
std::uint32_t float_to_bits(float x) { return std::bit_cast<std::uint32_t>(x); }
double bits_to_double(std::uint64_t x) { return std::bit_cast<double>(x); }
std::uint64_t double_to_bits(double x) { return std::bit_cast<std::uint64_t>(x); }
float size_of(float x) { return std::fabs(x); }
float widened(BFloat16Tiles, std::uint16_t x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16);
}
float widened(Float16Tiles, std::uint16_t x) { return widened_half(x); }

}  // namespace qkv::cuda
