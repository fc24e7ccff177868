// SPDX-License-Identifier: Apache-2.0
// A cta on one thread of the host. Which of the threads that can go on goes on is drawn at random,
// and each goes on until it has to wait for others: what is not ordered by a barrier happens in any
// order, and a wait that is missing shows. Copies happen at the last moment that is allowed.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "emulator/device/machine.h"
#include "emulator/fiber.h"

namespace hpcattn::emulator {

struct Launch {
  Dim3 grid;
  Dim3 cta;
  std::size_t shared_bytes = 0;
  char* shared = nullptr;
  void (*run)(const void* params) = nullptr;
  const void* params = nullptr;
};

class CtaMachine final : public Machine {
 public:
  /// Another `seed`, another order.
  explicit CtaMachine(std::uint64_t seed) : random_(seed * 2 + 1) {}

  /// Every cta of the grid, one after the other. "" or what went wrong.
  std::string run(const Launch& launch);

  void meet(unsigned mask, const char* what, void* mine, Together work) override;
  int barrier(int id, int threads, bool vote) override;
  void barrier_arrive(int id, int threads) override;
  void wait_until(const char* what, Ready ready, const void* at, int argument) override;
  void start_copy(std::function<void()> copy) override;
  void close_group() override;
  void wait_for_groups(int pending) override;
  void start_product(std::function<void()> product) override;
  void close_products() override;
  void wait_for_products(int pending) override;
  bool flip() override { return draw(2) == 0; }
  void start_engine_copy(std::function<void()> copy) override;
  [[noreturn]] void fail(const char* format, ...) override __attribute__((format(printf, 2, 3)));

 private:
  /// What is under way, in the order it was started: closed groups, and the open one.
  class Groups {
   public:
    void clear() { groups_.assign(1, {}); }
    void start(std::function<void()> work) { groups_.back().push_back(std::move(work)); }
    void close() { groups_.emplace_back(); }
    /// Does what is needed for at most `pending` closed groups to be left.
    void wait(int pending);

   private:
    std::deque<std::vector<std::function<void()>>> groups_ =
        std::deque<std::vector<std::function<void()>>>(1);
  };
  struct Thread {
    std::unique_ptr<Fiber> fiber;
    CtaMachine* machine = nullptr;
    int index = 0;
    const char* waits_for = nullptr;  // null: it can go on
    bool ended = false;
    int result = 0;  // of a barrier
    Ready ready = nullptr;
    const void* at = nullptr;
    int argument = 0;
    Groups copies;
  };
  struct Meeting {
    unsigned mask = 0;
    unsigned here = 0;
    const char* what = nullptr;
    Together work = nullptr;
    void* of_lane[32] = {};
  };
  struct Barrier {
    int expected = 0;
    int votes = 0;
    int arrived = 0;        // without waiting
    std::vector<int> here;  // who waits
    int count() const { return arrived + static_cast<int>(here.size()); }
  };

  void run_cta(const Launch& launch);
  void begin_thread(int index);
  void end_thread();
  void release(int index);
  void wait(const char* what);
  Barrier& come_to(int id, int threads);
  bool barrier_is_full(int id, const Barrier& barrier) const;
  void open_full_barriers();
  bool poll();
  bool copy_one();
  int draw(int below);
  void name_thread(int index);
  std::string describe_waits() const;

  const Launch* launch_ = nullptr;
  std::uint64_t random_;
  std::vector<Thread> threads_;
  int num_threads_ = 0;
  int live_ = 0;
  int running_ = -1;
  std::vector<int> runnable_;
  std::vector<int> polling_;
  std::map<int, Meeting> meetings_;  // by 32 * warp + the lowest lane of the mask
  std::map<int, Barrier> barriers_;
  std::map<int, Groups> products_;  // by warp
  std::vector<std::function<void()>> engine_copies_;
  std::string failure_;
  jmp_buf failed_;
};

}  // namespace hpcattn::emulator
