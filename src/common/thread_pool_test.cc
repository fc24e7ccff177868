// SPDX-License-Identifier: Apache-2.0
#include "src/common/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

namespace hpcattn {
namespace {

TEST(ThreadPool, EachIndexOnce) {
  for (const int n : {0, 1, 2, 7, 1000}) {
    std::vector<std::atomic<int>> calls(static_cast<std::size_t>(n));
    run_parallel({.num_threads = 4}, n, [&](int i) { ++calls[std::size_t(i)]; });
    for (const auto& count : calls) EXPECT_EQ(count, 1);
  }
}

TEST(ThreadPool, AnExceptionReachesTheCallerAndThePoolGoesOn) {
  const auto fail = [](int i) {
    if (i == 3) throw std::runtime_error("three");
  };
  EXPECT_THROW(run_parallel({.num_threads = 3}, 10, fail), std::runtime_error);
  std::atomic<int> sum{0};
  run_parallel({.num_threads = 3}, 10, [&](int i) { sum += i; });
  EXPECT_EQ(sum, 45);
}

TEST(ThreadPool, CallsFromManyThreadsAndFromWithin) {
  std::atomic<int> sum{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        run_parallel({.num_threads = 3}, 5,
                     [&](int) { run_parallel({.num_threads = 3}, 2, [&](int) { ++sum; }); });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, 4 * 50 * 5 * 2);
}

TEST(ThreadPool, TheCallersPoolIsUsed) {
  int calls = 0;
  Execution execution{.num_threads = 2};
  execution.parallel_for = [&](int n, const std::function<void(int)>& body) {
    ++calls;
    for (int i = n; i-- > 0;) body(i);
  };
  int sum = 0;
  run_parallel(execution, 4, [&](int i) { sum += i; });
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(sum, 6);
}

#if !defined(__SANITIZE_THREAD__)
TEST(ThreadPool, AForkedChildComputesToo) {
  std::atomic<int> before{0};
  run_parallel({.num_threads = 3}, 8, [&](int) { ++before; });
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);  // a child that waits for its parent's threads would wait for ever
    std::atomic<int> sum{0};
    run_parallel({.num_threads = 3}, 8, [&](int i) { sum += i; });
    _exit(sum == 28 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
#endif

TEST(ThreadPool, NumThreads) {
  EXPECT_EQ(num_threads({.num_threads = 5}), 5);
  setenv("HPCATTN_NUM_THREADS", "3", 1);
  EXPECT_EQ(num_threads({}), 3);
  setenv("HPCATTN_NUM_THREADS", "many", 1);
  EXPECT_GE(num_threads({}), 1);
  unsetenv("HPCATTN_NUM_THREADS");
  EXPECT_GE(num_threads({}), 1);
}

}  // namespace
}  // namespace hpcattn
