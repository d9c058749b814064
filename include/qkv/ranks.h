// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_RANKS_H_
#define QKV_RANKS_H_

#include <cstddef>
#include <exception>
#include <memory>
#include <span>
#include <stdexcept>

#include <qkv/export.h>

namespace qkv {

// A message on its way. The memory of a receive must live until wait() returns or the object is
// destroyed. That of a send must live and not change until wait() returns; if the object is
// destroyed before, the transport may read it until the process ends.
class Transfer {
 public:
  Transfer() = default;
  // Gives up a message that was not waited for. Only code that handles an error may do so: the
  // ranks cannot exchange messages afterwards.
  virtual ~Transfer() = default;
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // Returns when the message has been received, or when what was sent may change.
  virtual void wait() = 0;
  // True if wait() would return at once. The call also lets messages progress.
  virtual bool is_done() = 0;
};

// Processes that compute together, as one of them sees them: ranks 0 to count() - 1. Messages from
// one rank to another in one channel arrive in the order in which they were sent. Functions that
// take ranks are collective: all ranks call them, in the same order, and one thread of each.
// <qkv/mpi.h> has the ranks of MPI.
class Ranks {
 public:
  Ranks() = default;
  virtual ~Ranks() = default;
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  virtual int rank() const noexcept = 0;
  virtual int count() const noexcept = 0;
  // Begins to send to, or to receive from, another rank, in a channel from 0 to 3. A message is
  // received with the size with which it was sent. send(), receive(), wait() and is_done() throw
  // std::runtime_error if the transport fails.
  virtual std::unique_ptr<Transfer> send(std::span<const std::byte> data, int to,
                                         int channel = 0) = 0;
  virtual std::unique_ptr<Transfer> receive(std::span<std::byte> data, int from,
                                            int channel = 0) = 0;
};

// Thrown by a collective function if any rank has an error, on all ranks but the lowest that has
// one: that rank throws its own error.
class QKV_API OtherRankFailed : public std::runtime_error {
 public:
  explicit OtherRankFailed(int rank);
  ~OtherRankFailed() override;
};

// Collective: returns if no rank has an error. Else the lowest rank that has one rethrows it, and
// all others throw OtherRankFailed.
QKV_API void check_all(Ranks& ranks, const std::exception_ptr& error);

}  // namespace qkv

#endif  // QKV_RANKS_H_
