// SPDX-License-Identifier: Apache-2.0
#include "mpi/mpi_ranks.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace qkv::mpi {
namespace {

// A count of MPI 3 is an int: messages above this size are sent in parts.
constexpr std::size_t kMostBytes = std::size_t{1} << 30;

void check(int code, const char* function) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw std::runtime_error(std::string(function) + ": " +
                           std::string(text.data(), static_cast<std::size_t>(length)));
}

enum class Direction { kSend, kReceive };

class MpiTransfer final : public Transfer {
 public:
  // `start` is called as start(first byte, count, request) for each part. `failed` is set if the
  // message is given up.
  template <class Start>
  MpiTransfer(Direction direction, std::size_t bytes, std::shared_ptr<bool> failed,
              const Start& start)
      : direction_(direction), failed_(std::move(failed)) {
    try {
      for (std::size_t first = 0; first == 0 || first < bytes; first += kMostBytes) {
        MPI_Request& request = requests_.emplace_back(MPI_REQUEST_NULL);
        start(first, static_cast<int>(std::min(kMostBytes, bytes - first)), &request);
      }
    } catch (...) {
      *failed_ = true;
      throw;
    }
  }
  // A receive that was not waited for is cancelled, since its memory may be freed. Sends cannot be
  // cancelled reliably (deprecated in MPI 4).
  ~MpiTransfer() override {
    for (MPI_Request& request : requests_) {
      if (request == MPI_REQUEST_NULL) continue;
      *failed_ = true;
      if (direction_ == Direction::kReceive) {
        MPI_Cancel(&request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
      } else {
        MPI_Request_free(&request);
      }
    }
  }

  void wait() override {
    check(MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE),
          "MPI_Waitall");
  }
  bool is_done() override {
    int done = 0;
    check(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done,
                      MPI_STATUSES_IGNORE),
          "MPI_Testall");
    return done != 0;
  }

 private:
  Direction direction_;
  std::shared_ptr<bool> failed_;
  std::vector<MPI_Request> requests_{};
};

}  // namespace

MpiRanks::MpiRanks(MPI_Comm comm, MPI_Errhandler handler) {
  check(MPI_Comm_dup(comm, &comm_), "MPI_Comm_dup");
  try {
    check(MPI_Comm_set_errhandler(comm_, handler), "MPI_Comm_set_errhandler");
    check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(comm_, &count_), "MPI_Comm_size");
  } catch (...) {
    MPI_Comm_free(&comm_);
    throw;
  }
}

MpiRanks::~MpiRanks() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (comm_ != MPI_COMM_NULL && finalized == 0) MPI_Comm_free(&comm_);
}

void MpiRanks::check_usable() const {
  if (*failed_)
    throw std::runtime_error("the ranks cannot go on after an error in an earlier call");
}

std::unique_ptr<Transfer> MpiRanks::send(std::span<const std::byte> data, int to, int channel) {
  check_usable();
  return std::make_unique<MpiTransfer>(
      Direction::kSend, data.size(), failed_,
      [&](std::size_t first, int count, MPI_Request* request) {
        check(MPI_Isend(data.data() + first, count, MPI_BYTE, to, channel, comm_, request),
              "MPI_Isend");
      });
}

std::unique_ptr<Transfer> MpiRanks::receive(std::span<std::byte> data, int from, int channel) {
  check_usable();
  return std::make_unique<MpiTransfer>(
      Direction::kReceive, data.size(), failed_,
      [&](std::size_t first, int count, MPI_Request* request) {
        check(MPI_Irecv(data.data() + first, count, MPI_BYTE, from, channel, comm_, request),
              "MPI_Irecv");
      });
}

}  // namespace qkv::mpi
