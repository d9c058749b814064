// SPDX-License-Identifier: Apache-2.0
// Measures the speed of attention over ranks, and of messages between two ranks.
// scripts/measure/rank_speed.py runs this program by mpirun.
//
// usage: mpirun -n P ring_speed T HEADS CHANNELS ZIGZAGS CAUSAL ROUNDS
// Prints one line of JSON: the seconds of each round (of the slowest rank), the latency in seconds
// and the bytes per second of messages between ranks 0 and 1, and each rank's peak memory in KiB,
// once before the first call and once at the end.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <qkv/context.h>
#include <qkv/mpi.h>
#include <qkv/tensor.h>

namespace {

using qkv::DType;
using qkv::Index;
using qkv::Tensor;

Tensor normal(const qkv::Dims& shape, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> distribution;
  Tensor x(DType::kFloat32, shape);
  for (float& value : x.values<float>()) value = distribution(random);
  return x;
}

// The seconds that the slowest rank takes for f().
double seconds_of(const std::function<void()>& f) {
  MPI_Barrier(MPI_COMM_WORLD);
  const double start = MPI_Wtime();
  f();
  double spent = MPI_Wtime() - start;
  MPI_Allreduce(MPI_IN_PLACE, &spent, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return spent;
}

// The seconds of a message between ranks 0 and 1: half of the best of 20 round trips.
double seconds_of_message(int rank, std::size_t bytes) {
  std::vector<char> data(bytes);
  double best = 1e9;
  for (int trip = 0; trip < 20; ++trip) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    for (const int sender : {0, 1}) {
      const int count = static_cast<int>(bytes);
      if (rank == sender) MPI_Send(data.data(), count, MPI_BYTE, 1 - sender, 0, MPI_COMM_WORLD);
      if (rank == 1 - sender) {
        MPI_Recv(data.data(), count, MPI_BYTE, sender, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      }
    }
    best = std::min(best, (MPI_Wtime() - start) / 2);
  }
  return best;
}

// The process's peak memory in KiB.
long peak_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != "VmHWM:") continue;
    long size = 0;
    status >> size;
    return size;
  }
  return 0;
}

std::string list(const std::vector<double>& values) {
  std::string text;
  for (const double value : values) {
    char number[32];
    std::snprintf(number, sizeof(number), "%.6g", value);
    text += (text.empty() ? "" : ", ") + std::string(number);
  }
  return "[" + text + "]";
}

int run(int rank, int count, char** argv) {
  const Index T = std::atol(argv[1]);
  const Index H = std::atol(argv[2]);
  const Index D = std::atol(argv[3]);
  const bool is_causal = std::string(argv[5]) == "1";
  const int rounds = std::atoi(argv[6]);
  const qkv::Sharding sharding{std::atol(argv[4])};
  const auto seed = static_cast<std::uint32_t>(10 * rank);
  const qkv::Dims shape{1, H, T / count, D};
  const Tensor q = normal(shape, seed);
  const Tensor k = normal(shape, seed + 1);
  const Tensor v = normal(shape, seed + 2);
  const Tensor dout = normal(shape, seed + 3);
  Tensor out(DType::kFloat32, shape);
  Tensor lse(DType::kFloat32, {1, H, T / count});
  Tensor dq(DType::kFloat32, shape);
  Tensor dk(DType::kFloat32, shape);
  Tensor dv(DType::kFloat32, shape);
  const long before = peak_memory();
  qkv::Options options;
  if (is_causal) options.masks = {qkv::Causal{}};
  const auto ranks = qkv::mpi::ranks_of(MPI_COMM_WORLD);
  qkv::Context context;
  std::vector<double> forward;
  std::vector<double> backward;
  for (int round = 0; round <= rounds; ++round) {
    const double forward_time = seconds_of([&] {
      ring_attention({q, k, v}, options, {.out = out, .lse = lse}, *ranks, sharding, context);
    });
    const double backward_time = seconds_of([&] {
      ring_attention_backward({q, k, v}, options, {out, lse}, {.out = dout},
                              {.q = dq, .k = dk, .v = dv}, *ranks, sharding, context);
    });
    if (round == 0) continue;  // the first round warms up
    forward.push_back(forward_time);
    backward.push_back(backward_time);
  }
  const long peaks[] = {before, peak_memory()};
  std::vector<long> all(static_cast<std::size_t>(2 * count));
  MPI_Gather(peaks, 2, MPI_LONG, all.data(), 2, MPI_LONG, 0, MPI_COMM_WORLD);
  constexpr std::size_t kLarge = std::size_t{16} << 20;
  const double latency = count > 1 ? seconds_of_message(rank, 8) : 0;
  const double large = count > 1 ? seconds_of_message(rank, kLarge) : 0;
  if (rank != 0) return EXIT_SUCCESS;
  std::printf(
      "{\"ranks\": %d, \"forward\": %s, \"backward\": %s, \"latency\": %.3g, "
      "\"bytes_per_second\": %.4g, \"peak_kib\": %s}\n",
      count, list(forward).c_str(), list(backward).c_str(), latency,
      large > 0 ? static_cast<double>(kLarge) / large : 0.0,
      list({all.begin(), all.end()}).c_str());
  return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  int rank = 0;
  int count = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &count);
  if (argc != 7) {
    if (rank == 0) {
      std::fputs("usage: ring_speed T HEADS CHANNELS ZIGZAGS CAUSAL ROUNDS\n", stderr);
    }
    MPI_Finalize();
    return 2;
  }
  const int code = run(rank, count, argv);
  MPI_Finalize();
  return code;
}
