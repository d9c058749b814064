// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_RANKS_THREAD_RANKS_H_
#define QKV_TESTS_RANKS_THREAD_RANKS_H_

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <qkv/ranks.h>

namespace qkv::test {

// When a sender may go on.
enum class Sending {
  kBuffered,   // at once
  kRendezvous  // when the message is received, as MPI may demand
};

// Ranks that are threads of this process, for the tests.
class ThreadRanks {
 public:
  struct Options {
    Sending sending = Sending::kRendezvous;
    int most_delay_us = 0;  // the longest random pause before a message is sent
  };

  // Calls f(ranks) on `count` threads, one for each rank. Rethrows the exception of the lowest rank
  // that failed by itself, not because it waited for a rank that had failed. A rank fails if it
  // waits for one that has ended.
  static void run(int count, const Options& options, const std::function<void(Ranks&)>& f) {
    Hub hub{options};
    std::vector<std::exception_ptr> errors(static_cast<std::size_t>(count));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < count; ++rank) {
      threads.emplace_back([&, rank] {
        One one(hub, rank, count);
        try {
          f(one);
          hub.end(rank);
        } catch (const OtherFailed&) {
          errors[static_cast<std::size_t>(rank)] = nullptr;
        } catch (...) {
          errors[static_cast<std::size_t>(rank)] = std::current_exception();
          hub.fail();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& error : errors) {
      if (error) std::rethrow_exception(error);
    }
    for (const auto& [stream, messages] : hub.messages) {
      if (!messages.empty()) throw std::logic_error("a message was not received");
    }
  }
  static void run(int count, const std::function<void(Ranks&)>& f) { run(count, {}, f); }

 private:
  struct OtherFailed : std::runtime_error {
    OtherFailed() : std::runtime_error("another rank has failed") {}
  };
  struct Message {
    std::span<const std::byte> data;
    std::vector<std::byte> copy{};
    bool received = false;
  };
  using Stream = std::array<int, 3>;  // sender, receiver and channel
  using Queue = std::deque<std::shared_ptr<Message>>;

  // The destination of a message.
  struct Place {
    std::span<std::byte> data;
    bool received = false;
  };

  // The messages and the state that the threads share.
  struct Hub {
    Options options;
    std::mutex mutex{};
    std::condition_variable changed{};
    std::map<Stream, Queue> messages{};
    std::map<Stream, std::deque<std::shared_ptr<Place>>> places{};
    std::set<int> ended{};  // the ranks for which f has returned
    bool failed = false;

    void end(int rank) {
      const std::scoped_lock lock(mutex);
      ended.insert(rank);
      changed.notify_all();
    }
    void fail() {
      const std::scoped_lock lock(mutex);
      failed = true;
      changed.notify_all();
    }
    // Waits until `condition` holds, which is up to the rank `other`.
    template <class Condition>
    void wait(std::unique_lock<std::mutex>& lock, int other, const Condition& condition) {
      constexpr auto kPatience = std::chrono::minutes(5);  // only a deadlock takes longer
      const auto is_over = [&] { return condition() || failed || ended.contains(other); };
      if (!changed.wait_for(lock, kPatience, is_over)) {
        throw std::logic_error("ranks wait for one another");
      }
      if (condition()) return;
      if (failed) throw OtherFailed();
      throw std::logic_error("a rank waited for one that had ended");
    }
  };

  class Sent final : public Transfer {
   public:
    Sent(Hub& hub, int to, std::shared_ptr<Message> message)
        : hub_(hub), to_(to), message_(std::move(message)) {}
    void wait() override {
      if (hub_.options.sending == Sending::kBuffered) return;
      std::unique_lock lock(hub_.mutex);
      hub_.wait(lock, to_, [&] { return message_->received; });
    }
    bool is_done() override {
      const std::scoped_lock lock(hub_.mutex);
      return hub_.options.sending == Sending::kBuffered || message_->received;
    }

   private:
    Hub& hub_;
    int to_;
    std::shared_ptr<Message> message_;
  };

  class Received final : public Transfer {
   public:
    Received(Hub& hub, const Stream& stream, std::span<std::byte> data)
        : hub_(hub), stream_(stream), place_(std::make_shared<Place>(Place{data})) {
      const std::scoped_lock lock(hub.mutex);
      hub.places[stream].push_back(place_);
    }
    void wait() override {
      std::unique_lock lock(hub_.mutex);
      hub_.wait(lock, stream_[0], [&] {
        deliver();
        return place_->received;
      });
    }
    bool is_done() override {
      const std::scoped_lock lock(hub_.mutex);
      deliver();
      return place_->received;
    }

   private:
    // Messages are received in the order in which the receives began.
    void deliver() {
      Queue& messages = hub_.messages[stream_];
      auto& places = hub_.places[stream_];
      while (!messages.empty() && !places.empty()) {
        const std::span<const std::byte> from = messages.front()->data;
        const std::span<std::byte> to = places.front()->data;
        if (from.size() != to.size()) {
          throw std::logic_error("a message of " + std::to_string(from.size()) +
                                 " bytes was received as one of " + std::to_string(to.size()));
        }
        if (!to.empty()) std::memcpy(to.data(), from.data(), to.size());
        messages.front()->received = true;
        places.front()->received = true;
        messages.pop_front();
        places.pop_front();
        hub_.changed.notify_all();
      }
    }

    Hub& hub_;
    Stream stream_;
    std::shared_ptr<Place> place_;
  };

  class One final : public Ranks {
   public:
    One(Hub& hub, int rank, int count)
        : hub_(hub), rank_(rank), count_(count), random_(static_cast<unsigned>(rank)) {}
    int rank() const noexcept override { return rank_; }
    int count() const noexcept override { return count_; }
    std::unique_ptr<Transfer> send(std::span<const std::byte> data, int to, int channel) override {
      check(to);
      if (hub_.options.most_delay_us > 0) {
        std::uniform_int_distribution<int> delay(0, hub_.options.most_delay_us);
        std::this_thread::sleep_for(std::chrono::microseconds(delay(random_)));
      }
      auto message = std::make_shared<Message>(Message{data});
      if (hub_.options.sending == Sending::kBuffered) {
        message->copy.assign(data.begin(), data.end());
        message->data = message->copy;
      }
      const std::scoped_lock lock(hub_.mutex);
      hub_.messages[{rank_, to, channel}].push_back(message);
      hub_.changed.notify_all();
      return std::make_unique<Sent>(hub_, to, std::move(message));
    }
    std::unique_ptr<Transfer> receive(std::span<std::byte> data, int from, int channel) override {
      check(from);
      return std::make_unique<Received>(hub_, Stream{from, rank_, channel}, data);
    }

   private:
    void check(int other) const {
      if (other < 0 || other >= count_ || other == rank_) {
        throw std::logic_error("no other rank: " + std::to_string(other));
      }
    }

    Hub& hub_;
    int rank_;
    int count_;
    std::mt19937 random_;
  };
};

}  // namespace qkv::test

#endif  // QKV_TESTS_RANKS_THREAD_RANKS_H_
