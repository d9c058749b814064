// SPDX-License-Identifier: Apache-2.0
#include "mpi/mpi_ranks.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

namespace qkv::mpi {
namespace {

// A count of MPI 3 is an int: longer messages are sent in parts.
constexpr std::size_t kMostBytes = std::size_t{1} << 30;

void check(int code, const char* function) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw std::runtime_error(std::string(function) + ": " +
                           std::string(text.data(), static_cast<std::size_t>(length)));
}

class MpiTransfer final : public Transfer {
 public:
  // `start` is called as start(first byte, count, request) for each part.
  template <class Start>
  MpiTransfer(std::size_t bytes, const Start& start) {
    for (std::size_t first = 0; first == 0 || first < bytes; first += kMostBytes) {
      MPI_Request& request = requests_.emplace_back(MPI_REQUEST_NULL);
      start(first, static_cast<int>(std::min(kMostBytes, bytes - first)), &request);
    }
  }
  ~MpiTransfer() override {
    for (MPI_Request& request : requests_) {
      if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
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
  std::vector<MPI_Request> requests_{};
};

}  // namespace

MpiRanks::MpiRanks(MPI_Comm comm) {
  check(MPI_Comm_dup(comm, &comm_), "MPI_Comm_dup");
  check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(comm_, &count_), "MPI_Comm_size");
}

MpiRanks::~MpiRanks() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (comm_ != MPI_COMM_NULL && finalized == 0) MPI_Comm_free(&comm_);
}

std::unique_ptr<Transfer> MpiRanks::send(std::span<const std::byte> data, int to, int channel) {
  return std::make_unique<MpiTransfer>(
      data.size(), [&](std::size_t first, int count, MPI_Request* request) {
        check(MPI_Isend(data.data() + first, count, MPI_BYTE, to, channel, comm_, request),
              "MPI_Isend");
      });
}

std::unique_ptr<Transfer> MpiRanks::receive(std::span<std::byte> data, int from, int channel) {
  return std::make_unique<MpiTransfer>(
      data.size(), [&](std::size_t first, int count, MPI_Request* request) {
        check(MPI_Irecv(data.data() + first, count, MPI_BYTE, from, channel, comm_, request),
              "MPI_Irecv");
      });
}

void MpiRanks::abort(int code) const {
  MPI_Abort(comm_, code);
  std::abort();
}

}  // namespace qkv::mpi
