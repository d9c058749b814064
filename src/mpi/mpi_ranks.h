// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_MPI_MPI_RANKS_H_
#define QKV_MPI_MPI_RANKS_H_

#include <memory>

#include <mpi.h>

#include <qkv/ranks.h>

namespace qkv::mpi {

// The processes of a communicator. Messages go over a duplicate of the communicator, apart from the
// messages of other code.
class MpiRanks final : public Ranks {
 public:
  // Collective. Throws std::runtime_error if MPI reports an error, as send() and receive() do,
  // unless `handler` is one that ends all processes.
  explicit MpiRanks(MPI_Comm comm, MPI_Errhandler handler = MPI_ERRORS_RETURN);
  ~MpiRanks() override;

  int rank() const noexcept override { return rank_; }
  int count() const noexcept override { return count_; }
  std::unique_ptr<Transfer> send(std::span<const std::byte> data, int to, int channel) override;
  std::unique_ptr<Transfer> receive(std::span<std::byte> data, int from, int channel) override;

 private:
  void check_usable() const;

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int count_ = 1;
  std::shared_ptr<bool> failed_ = std::make_shared<bool>(false);
};

}  // namespace qkv::mpi

#endif  // QKV_MPI_MPI_RANKS_H_
