// SPDX-License-Identifier: Apache-2.0
// A program for mpirun: tests that attention over MPI has the bits of one process, which each rank
// computes for comparison. Exits with 1 if they differ, or if there are not as many ranks as its
// argument says.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>

#include <qkv/mpi.h>
#include <qkv/tensor.h>

namespace {

using qkv::DType;
using qkv::Index;
using qkv::Sharding;
using qkv::Tensor;

constexpr Index kPart = 512;  // rows of a part; parts begin at multiples of kShardKeys
constexpr Index kHeads = 2;

Tensor normal(const qkv::Dims& shape, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> distribution;
  Tensor x(DType::kFloat32, shape);
  for (float& value : x.values<float>()) value = distribution(random);
  return x;
}

// The numbers of the two parts of the sequence that one rank has.
struct Rows {
  Index parts[2];

  Tensor of(const qkv::ConstView& x) const {
    qkv::Dims shape = x.shape();
    shape[2] = 2 * kPart;
    Tensor rows(x.dtype(), shape);
    for (Index n = 0; n < 2; ++n) {
      copy(slice(x, 2, parts[n] * kPart, (parts[n] + 1) * kPart),
           slice(rows.view(), 2, n * kPart, (n + 1) * kPart));
    }
    return rows;
  }
};

int failures = 0;

// Compares the result of a rank with its rows of the result of one process. `where` names the rank
// and the sharding.
void check(const std::string& where, const char* what, const Tensor& got, const Tensor& want) {
  const auto bytes = static_cast<std::size_t>(want.element_count()) * sizeof(float);
  if (got.shape() == want.shape() &&
      std::memcmp(got.view().data(), want.view().data(), bytes) == 0) {
    return;
  }
  std::printf("%s: %s differs\n", where.c_str(), what);
  ++failures;
}

void run(int rank, int count, Sharding sharding) {
  const Index T = 2 * count * kPart;
  const Rows own = sharding == qkv::kZigzag ? Rows{{rank, 2 * count - 1 - rank}}
                                            : Rows{{2 * rank, 2 * rank + 1}};
  const Tensor q = normal({1, kHeads, T, 16}, 1);
  const Tensor k = normal({1, kHeads, T, 16}, 2);
  const Tensor v = normal({1, kHeads, T, 8}, 3);
  const Tensor dout = normal({1, kHeads, T, 8}, 4);
  const qkv::Options options{.softcap = 20, .masks = {qkv::Causal{}, qkv::Window{1500, -1}}};
  Tensor out(DType::kFloat32, v.shape());
  Tensor lse(DType::kFloat32, {1, kHeads, T});
  Tensor dq(DType::kFloat32, q.shape());
  Tensor dk(DType::kFloat32, k.shape());
  Tensor dv(DType::kFloat32, v.shape());
  attention({q, k, v}, options, {.out = out, .lse = lse});
  attention_backward({q, k, v}, options, {out, lse}, {.out = dout}, {.q = dq, .k = dk, .v = dv});

  const Tensor own_q = own.of(q);
  const Tensor own_k = own.of(k);
  const Tensor own_v = own.of(v);
  const Tensor own_dout = own.of(dout);
  Tensor own_out(DType::kFloat32, own_v.shape());
  Tensor own_lse(DType::kFloat32, {1, kHeads, 2 * kPart});
  Tensor own_dq(DType::kFloat32, own_q.shape());
  Tensor own_dk(DType::kFloat32, own_k.shape());
  Tensor own_dv(DType::kFloat32, own_v.shape());
  // Ranks call at different times.
  std::this_thread::sleep_for(std::chrono::milliseconds(30 * (rank % 3)));
  qkv::mpi::attention(MPI_COMM_WORLD, {own_q, own_k, own_v}, options,
                      {.out = own_out, .lse = own_lse}, sharding);
  std::this_thread::sleep_for(std::chrono::milliseconds(30 * ((rank + 1) % 3)));
  qkv::mpi::attention_backward(MPI_COMM_WORLD, {own_q, own_k, own_v}, options, {own_out, own_lse},
                               {.out = own_dout}, {.q = own_dq, .k = own_dk, .v = own_dv},
                               sharding);
  const std::string where = "rank " + std::to_string(rank) + " of " + std::to_string(count) +
                            (sharding == qkv::kZigzag ? ", zigzag" : ", contiguous");
  check(where, "out", own_out, own.of(out));
  check(where, "lse", own_lse, own.of(lse));
  check(where, "dq", own_dq, own.of(dq));
  check(where, "dk", own_dk, own.of(dk));
  check(where, "dv", own_dv, own.of(dv));
}

// Checks that one rank's error is thrown on all ranks. The last call of run() in main() checks that
// the ranks can be used again.
void check_errors(int rank, int count) {
  const Tensor x = normal({1, 1, kPart, 8}, 1);
  Tensor out(DType::kFloat32, x.shape());
  const bool is_wrong = rank == count - 1;
  std::string error = "none";
  try {
    qkv::mpi::attention(MPI_COMM_WORLD, {x, x, x}, {.softcap = is_wrong ? -1.0 : 0.0},
                        {.out = out});
  } catch (const std::runtime_error& thrown) {
    error = thrown.what();
  }
  const std::string want =
      count == 1 ? "ring_attention: softcap must be finite and 0 (off) or more, got -1"
      : is_wrong ? "ring_attention: softcap must be equal on all ranks, but differs on ranks 0 "
                   "and " +
                       std::to_string(rank)
                 : "rank " + std::to_string(count - 1) + " has failed";
  if (error == want) return;
  std::printf("rank %d: %s\n", rank, error.c_str());
  ++failures;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  int count = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &count);
  if (argc != 2 || std::to_string(count) != argv[1]) {
    std::printf("rank %d: there are %d ranks\n", rank, count);
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
  }
  run(rank, count, qkv::kContiguous);
  run(rank, count, qkv::kZigzag);
  check_errors(rank, count);
  run(rank, count, qkv::kZigzag);
  int all = 0;
  MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) std::printf("%d ranks, %d failures\n", count, all);
  MPI_Finalize();
  return all == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
