// SPDX-License-Identifier: Apache-2.0
// Tests the exchanges among all ranks, most of them for every number of ranks from one to nine.
#include "ranks/collective.h"

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <qkv/tensor.h>

#include "tests/ranks/thread_ranks.h"
#include "tests/support/errors.h"

namespace qkv::ranks {
namespace {

using test::Sending;
using test::ThreadRanks;

template <class F>
void on_any_number(const F& f) {
  for (int count = 1; count <= 9; ++count) {
    for (const Sending sending : {Sending::kBuffered, Sending::kRendezvous}) {
      ThreadRanks::run(count, {sending, 20}, f);
    }
  }
}

// Tests ThreadRanks itself, the ranks of all these tests.
TEST(ThreadRanks, EndAWaitForARankThatHasEnded) {
  const auto error = [](Sending sending, const auto& first, const auto& second) {
    return test::message_of<std::logic_error>([&] {
      ThreadRanks::run(2, {.sending = sending}, [&](Ranks& ranks) {
        std::byte byte{7};
        if (ranks.rank() == 0) {
          first(ranks, byte);
        } else {
          second(ranks, byte);
        }
      });
    });
  };
  const auto nothing = [](Ranks&, std::byte&) {};
  const auto send = [](Ranks& ranks, std::byte& byte) {
    ranks.send({&byte, 1}, 1 - ranks.rank(), 0)->wait();
  };
  const auto receive = [](Ranks& ranks, std::byte& byte) {
    ranks.receive({&byte, 1}, 1 - ranks.rank(), 0)->wait();
  };
  const std::string ended = "a rank waited for one that had ended";
  for (const Sending sending : {Sending::kBuffered, Sending::kRendezvous}) {
    EXPECT_EQ(error(sending, receive, nothing), ended);
    EXPECT_EQ(error(sending, nothing, receive), ended);
    EXPECT_EQ(error(sending, send, receive), "");
  }
  EXPECT_EQ(error(Sending::kRendezvous, send, nothing), ended);
  EXPECT_EQ(error(Sending::kBuffered, send, nothing), "a message was not received");
}

TEST(Shares, CoverEverythingOnce) {
  for (Index n = 1; n <= 20; ++n) {
    for (int ranks = 1; ranks <= 9; ++ranks) {
      EXPECT_EQ(share(n, 0, ranks), 0);
      EXPECT_EQ(share(n, ranks, ranks), n);
      EXPECT_EQ(owner(0, n, ranks), 0);
      for (Index thing = 0; thing < n; ++thing) {
        const int rank = owner(thing, n, ranks);
        EXPECT_LE(share(n, rank, ranks), thing) << n << " on " << ranks;
        EXPECT_GT(share(n, rank + 1, ranks), thing) << n << " on " << ranks;
      }
    }
  }
}

TEST(Collective, BroadcastsFromTheFirst) {
  on_any_number([](Ranks& ranks) {
    Index number = 100 + ranks.rank();
    broadcast(ranks, number);
    EXPECT_EQ(number, 100);
    std::string text = ranks.rank() == 0 ? std::string("a\0b", 3) : "other";
    broadcast(ranks, text);
    EXPECT_EQ(text, std::string("a\0b", 3));
    text = ranks.rank() == 0 ? "" : "other";
    broadcast(ranks, text);
    EXPECT_EQ(text, "");
  });
}

TEST(Collective, CollectsTextsByRank) {
  on_any_number([](Ranks& ranks) {
    const std::string mine(static_cast<std::size_t>(ranks.rank() % 3), 'x');
    const std::vector<std::string> all = all_texts(ranks, mine + std::to_string(ranks.rank()));
    ASSERT_EQ(all.size(), static_cast<std::size_t>(ranks.count()));
    for (std::size_t r = 0; r < all.size(); ++r) {
      EXPECT_EQ(all[r], std::string(r % 3, 'x') + std::to_string(r));
    }
    EXPECT_TRUE(any(ranks, ranks.rank() == ranks.count() - 1));
    EXPECT_FALSE(any(ranks, false));
  });
}

TEST(Collective, JoinsAndSplitsTexts) {
  const std::vector<std::string> texts{"", "one", std::string("t\0o", 3), ""};
  EXPECT_EQ(split(joined(texts)), texts);
  EXPECT_TRUE(split("").empty());
}

TEST(Collective, AnErrorIsThrownByTheLowestRankThatHasOne) {
  for (const int lowest : {0, 1, 3}) {
    ThreadRanks::run(5, [&](Ranks& ranks) {
      std::string caught;
      try {
        agreed(ranks, [&] {
          if (ranks.rank() >= lowest && ranks.rank() != 4) {
            throw std::runtime_error("own " + std::to_string(ranks.rank()));
          }
        });
      } catch (const std::runtime_error& error) {
        caught = error.what();
      }
      const std::string number = std::to_string(lowest);
      EXPECT_EQ(caught,
                ranks.rank() == lowest ? "own " + number : "rank " + number + " has failed");
    });
  }
}

// Moves ten rows from each division among four ranks to each. A division lists the ranks' first
// rows, then 10; in all but one, some rank has no rows.
TEST(Collective, MovesRows) {
  const std::vector<std::vector<Index>> divisions{
      {0, 4, 4, 9, 10}, {0, 0, 0, 10, 10}, {0, 3, 6, 8, 10}, {0, 10, 10, 10, 10}};
  for (const auto& from : divisions) {
    for (const auto& to : divisions) {
      ThreadRanks::run(4, {.most_delay_us = 20}, [&](Ranks& ranks) {
        const auto me = static_cast<std::size_t>(ranks.rank());
        Tensor mine(DType::kFloat32, {from[me + 1] - from[me], 3});
        for (std::size_t n = 0; n < mine.values<float>().size(); ++n) {
          mine.values<float>()[n] = static_cast<float>(3 * from[me]) + static_cast<float>(n);
        }
        Tensor got(DType::kFloat32, {to[me + 1] - to[me], 3});
        move_rows(ranks, from, mine, to, got);
        for (std::size_t n = 0; n < got.values<float>().size(); ++n) {
          EXPECT_EQ(got.values<float>()[n], static_cast<float>(3 * to[me]) + static_cast<float>(n));
        }
      });
    }
  }
}

}  // namespace
}  // namespace qkv::ranks
