// SPDX-License-Identifier: Apache-2.0
#include "src/common/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

namespace hpcattn {
namespace {

thread_local bool inside_body = false;

/// One call of run_parallel: indices are taken one by one, so a slow thread takes fewer.
struct Job {
  const std::function<void(int)>* body = nullptr;
  int n = 0;
  std::atomic<int> next{0};
  std::mutex mutex;
  std::exception_ptr error;

  void work() {
    inside_body = true;
    for (int i = next.fetch_add(1); i < n; i = next.fetch_add(1)) {
      try {
        (*body)(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
      }
    }
    inside_body = false;
  }
};

class ThreadPool {
 public:
  ~ThreadPool() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void run(int threads, Job& job) {
    const std::lock_guard one_at_a_time(turn_);
    const int helpers = std::min(threads, job.n) - 1;
    {
      const std::lock_guard lock(mutex_);
      while (static_cast<int>(threads_.size()) < helpers) {
        threads_.emplace_back([this, id = static_cast<int>(threads_.size())] { loop(id); });
      }
      job_ = &job;
      helpers_ = helpers;
      running_ = helpers;
      ++generation_;
    }
    wake_.notify_all();
    job.work();
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return running_ == 0; });
    job_ = nullptr;
  }

 private:
  void loop(int id) {
    std::uint64_t seen = 0;
    for (;;) {
      Job* job = nullptr;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return stop_ || (generation_ != seen && job_ != nullptr); });
        if (stop_) return;
        seen = generation_;
        if (id >= helpers_) continue;
        job = job_;
      }
      job->work();
      const std::lock_guard lock(mutex_);
      if (--running_ == 0) done_.notify_one();
    }
  }

  std::mutex turn_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  std::vector<std::thread> threads_;
  Job* job_ = nullptr;
  std::uint64_t generation_ = 0;
  int helpers_ = 0;
  int running_ = 0;
  bool stop_ = false;
};

// Leaked on purpose: at exit and in a forked child its threads can not be joined safely.
std::atomic<ThreadPool*> pool{nullptr};

ThreadPool& get_pool() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (pool.load() == nullptr) {
    static const int registered =
        pthread_atfork(nullptr, nullptr, [] { pool.store(nullptr); });  // the child has no threads
    (void)registered;
    pool.store(new ThreadPool);
  }
  return *pool.load();
}

int cores_of_this_process() {
  if (const char* text = std::getenv("HPCATTN_NUM_THREADS")) {
    const std::string_view digits(text);
    int value = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (value > 0) return value;
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

int num_threads(const Execution& execution) {
  return execution.num_threads > 0 ? execution.num_threads : cores_of_this_process();
}

void run_parallel(const Execution& execution, int n, const std::function<void(int)>& body) {
  const int threads = num_threads(execution);
  if (n <= 0) return;
  if (n == 1 || threads == 1 || inside_body) {
    for (int i = 0; i < n; ++i) body(i);
    return;
  }
  if (execution.parallel_for) {
    execution.parallel_for(n, body);
    return;
  }
  Job job;
  job.body = &body;
  job.n = n;
  get_pool().run(threads, job);
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace hpcattn
