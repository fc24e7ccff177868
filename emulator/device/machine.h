// SPDX-License-Identifier: Apache-2.0
// What a kernel that was compiled for the CPU sees of the machine that runs it. The threads of a
// cta take turns on one thread of the host; whoever waits for others lets them run.
#pragma once

#include <cstddef>
#include <functional>

namespace hpcattn::emulator {

struct Dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

class Machine {
 public:
  // Of the thread that runs.
  Dim3 thread;
  Dim3 cta;
  Dim3 cta_size;
  Dim3 grid_size;

  // The dynamic shared memory of the cta that runs.
  char* shared = nullptr;
  std::size_t shared_bytes = 0;

  /// `lanes[i]` is what lane i gave to meet(), null where it is not in `mask`.
  using Together = void (*)(void* const* lanes, unsigned mask);

  /// Waits for the lanes of `mask` of this warp. The last to come does `work` for all of them.
  virtual void meet(unsigned mask, const char* what, void* mine, Together work) = 0;

  /// Waits at barrier `id` until `threads` threads are there (0: all of the cta that have not
  /// ended); how many of them gave `vote`.
  virtual int barrier(int id, int threads, bool vote) = 0;

  /// Comes to it without waiting.
  virtual void barrier_arrive(int id, int threads) = 0;

  using Ready = bool (*)(const void* at, int argument);

  /// Waits until ready(at, argument), which others bring about.
  virtual void wait_until(const char* what, Ready ready, const void* at, int argument) = 0;

  /// A copy that this thread starts (cp.async): it happens at the last moment that is allowed.
  virtual void start_copy(std::function<void()> copy) = 0;
  virtual void close_group() = 0;
  virtual void wait_for_groups(int pending) = 0;

  /// A product that this warp starts (wgmma): it is made when its group is waited for.
  virtual void start_product(std::function<void()> product) = 0;
  virtual void close_products() = 0;
  virtual void wait_for_products(int pending) = 0;

  /// Which of two moments that are allowed something happens at.
  virtual bool flip() = 0;

  /// A copy that the engine makes at any moment from now on.
  virtual void start_engine_copy(std::function<void()> copy) = 0;

  /// What a kernel did is an error on a GPU: the launch ends with it.
  [[noreturn]] virtual void fail(const char* format, ...) __attribute__((format(printf, 2, 3))) = 0;

 protected:
  ~Machine() = default;
};

/// The machine of this kernel; set when it is loaded.
extern Machine* machine;

}  // namespace hpcattn::emulator
