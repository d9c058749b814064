// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_TESTS_RANKS_THREAD_RANKS_H_
#define QKV_TESTS_RANKS_THREAD_RANKS_H_

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
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
    int most_delay_us = 0;  // a random pause before each message is sent
  };

  // Calls f(ranks) on `count` threads. Rethrows the exception of the lowest rank whose own it is:
  // ranks that wait for one that has failed throw, too.
  static void run(int count, const Options& options, const std::function<void(Ranks&)>& f) {
    Hub hub{options};
    std::vector<std::exception_ptr> errors(static_cast<std::size_t>(count));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < count; ++rank) {
      threads.emplace_back([&, rank] {
        One one(hub, rank, count);
        try {
          f(one);
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
    if (hub.failed) throw std::logic_error("a rank waited for one that had ended");
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

  // What the threads share.
  struct Hub {
    Options options;
    std::mutex mutex{};
    std::condition_variable changed{};
    std::map<Stream, Queue> messages{};
    std::map<Stream, long> turns{};  // receives that have begun, and those done
    std::map<Stream, long> done{};
    bool failed = false;

    void fail() {
      const std::scoped_lock lock(mutex);
      failed = true;
      changed.notify_all();
    }
    template <class Condition>
    void wait(std::unique_lock<std::mutex>& lock, const Condition& condition) {
      constexpr auto kPatience = std::chrono::minutes(5);  // a deadlock takes longer
      if (!changed.wait_for(lock, kPatience, [&] { return failed || condition(); })) {
        throw std::logic_error("ranks wait for one another");
      }
      if (!condition()) throw OtherFailed();
    }
  };

  class Sent final : public Transfer {
   public:
    Sent(Hub& hub, std::shared_ptr<Message> message) : hub_(hub), message_(std::move(message)) {}
    void wait() override {
      if (hub_.options.sending == Sending::kBuffered) return;
      std::unique_lock lock(hub_.mutex);
      hub_.wait(lock, [&] { return message_->received; });
    }
    bool is_done() override {
      const std::scoped_lock lock(hub_.mutex);
      return hub_.options.sending == Sending::kBuffered || message_->received;
    }

   private:
    Hub& hub_;
    std::shared_ptr<Message> message_;
  };

  class Received final : public Transfer {
   public:
    Received(Hub& hub, Stream stream, std::span<std::byte> data)
        : hub_(hub), stream_(stream), data_(data) {
      const std::scoped_lock lock(hub.mutex);
      turn_ = hub.turns[stream]++;
    }
    bool is_done() override {
      const std::scoped_lock lock(hub_.mutex);
      return is_received_ || (hub_.done[stream_] == turn_ && !hub_.messages[stream_].empty());
    }
    void wait() override {
      if (is_received_) return;
      std::unique_lock lock(hub_.mutex);
      // Messages are received in the order in which the receives began.
      hub_.wait(lock, [&] {
        return hub_.done[stream_] > turn_ ||
               (hub_.done[stream_] == turn_ && !hub_.messages[stream_].empty());
      });
      const std::shared_ptr<Message> message = hub_.messages[stream_].front();
      hub_.messages[stream_].pop_front();
      ++hub_.done[stream_];
      if (message->data.size() != data_.size()) {
        throw std::logic_error("a message of " + std::to_string(message->data.size()) +
                               " bytes was received as one of " + std::to_string(data_.size()));
      }
      std::memcpy(data_.data(), message->data.data(), data_.size());
      message->received = true;
      is_received_ = true;
      hub_.changed.notify_all();
    }

   private:
    Hub& hub_;
    Stream stream_;
    std::span<std::byte> data_;
    long turn_ = 0;
    bool is_received_ = false;
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
      return std::make_unique<Sent>(hub_, std::move(message));
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
