// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/prepare.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "hpcattn/cuda.h"
#include "hpcattn/execution.h"

namespace hpcattn::cuda {
namespace {

using Prepare = std::function<void(const KernelVariant&)>;

/// One preparation of some variants: threads take the next one until there is none or one failed.
class Work {
 public:
  Work(std::span<const KernelVariant> variants, const Prepare& prepare, const Progress& progress)
      : variants_(variants), prepare_(prepare), progress_(progress) {}

  void run() {
    for (;;) {
      const std::size_t i = next_.fetch_add(1);
      if (i >= variants_.size() || failed_.load()) return;
      try {
        one(variants_[i]);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!failed_.exchange(true)) failure_ = std::current_exception();
      }
    }
  }

  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void one(const KernelVariant& variant) {
    const auto start = std::chrono::steady_clock::now();
    prepare_(variant);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    const std::lock_guard lock(mutex_);
    ++done_;
    if (progress_) {
      progress_({.done = done_,
                 .total = int(variants_.size()),
                 .name = variant.name,
                 .seconds = took.count(),
                 .compiled = was_compiled(variant.name)});
    }
  }

  bool was_compiled(const std::string& name) const {
    const std::vector<Compilation> all = compilations();
    return std::any_of(all.begin() + std::ptrdiff_t(compiled_before_), all.end(),
                       [&](const Compilation& c) { return c.name == name; });
  }

  std::span<const KernelVariant> variants_;
  const Prepare& prepare_;
  const Progress& progress_;
  const std::size_t compiled_before_ = compilations().size();
  std::atomic<std::size_t> next_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;  // of what follows
  int done_ = 0;
  std::exception_ptr failure_;
};

void prepare_all(std::span<const KernelVariant> variants, const Prepare& prepare,
                 const Progress& progress, int num_threads) {
  Work work(variants, prepare, progress);
  const int threads = std::min(num_threads > 0 ? num_threads : hpcattn::num_threads(Execution{}),
                               int(variants.size()));
  std::vector<std::thread> helpers;
  for (int i = 1; i < threads; ++i) helpers.emplace_back([&] { work.run(); });
  work.run();
  for (std::thread& helper : helpers) helper.join();
  work.rethrow();
}

}  // namespace

void prepare_kernels(std::span<const KernelVariant> variants, int device, const Progress& progress,
                     int num_threads) {
  device_info(device);  // its errors first, from this thread
  prepare_all(
      variants, [&](const KernelVariant& variant) { load_kernel(device, variant); }, progress,
      num_threads);
}

void prepare_cubins(std::span<const KernelVariant> variants, const std::string& arch,
                    const Progress& progress, int num_threads) {
  prepare_all(
      variants, [&](const KernelVariant& variant) { cubin_for(variant, arch); }, progress,
      num_threads);
}

}  // namespace hpcattn::cuda
