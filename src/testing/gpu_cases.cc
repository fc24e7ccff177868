// SPDX-License-Identifier: Apache-2.0
#include "src/testing/gpu_cases.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

namespace hpcattn::testkit {
namespace {

constexpr std::size_t kMostReports = 10;
constexpr auto kBetweenProgress = std::chrono::seconds(5);

/// Lanes live to the end of the process, as the driver does.
std::vector<std::unique_ptr<GpuLane>>& lanes() {
  static auto* all = new std::vector<std::unique_ptr<GpuLane>>();
  return *all;
}

std::size_t num_threads() {
  if (const char* text = std::getenv("HPCATTN_TEST_THREADS")) {
    return std::max<std::size_t>(1, std::strtoul(text, nullptr, 10));
  }
  return std::max(1U, std::thread::hardware_concurrency());
}

/// After one of these the context is lost: no later call of this process can succeed.
bool is_fatal(const std::string& report) {
  for (const char* text :
       {"illegal", "misaligned", "launch failure", "unspecified", "CUDA error 7"}) {
    if (report.find(text) != std::string::npos) return true;
  }
  return false;
}

class Progress {
 public:
  explicit Progress(std::size_t count) : count_(count) {}

  void report(std::size_t done, std::size_t wrong) {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < kBetweenProgress) return;
    last_ = now;
    std::fprintf(stderr, "    %zu of %zu cases, %zu wrong\n", done, count_, wrong);
  }

 private:
  std::size_t count_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace

GpuLane& main_lane() {
  if (lanes().empty()) lanes().push_back(std::make_unique<GpuLane>());
  return *lanes().front();
}

std::vector<std::string> failures_of_cases(
    std::size_t count, const std::function<std::string(GpuLane&, std::size_t)>& body) {
  const std::size_t threads = std::min(num_threads(), std::max<std::size_t>(count, 1));
  while (lanes().size() < threads) lanes().push_back(std::make_unique<GpuLane>());
  std::vector<std::string> reports;
  Progress progress(count);
  std::mutex mutex;
  std::atomic<std::size_t> next{0};
  std::size_t done = 0, wrong = 0;
  const auto work = [&](GpuLane& lane) {
    use_gpu();
    for (std::size_t i = next++; i < count; i = next++) {
      std::string report;
      try {
        report = body(lane, i);
      } catch (const std::exception& error) {
        report = "case " + std::to_string(i) + " threw: " + error.what();
      }
      const std::lock_guard lock(mutex);
      ++done;
      wrong += report.empty() ? 0U : 1U;
      progress.report(done, wrong);
      if (report.empty()) continue;
      if (is_fatal(report)) {
        std::fprintf(stderr,
                     "%s\nThe GPU's context is lost; with HPCATTN_TEST_THREADS=1 the case "
                     "that is told last is the one.\n",
                     report.c_str());
        std::fflush(nullptr);
        std::_Exit(1);
      }
      if (reports.size() < kMostReports) reports.push_back(report);
    }
  };
  std::vector<std::thread> workers;
  for (std::size_t i = 1; i < threads; ++i) workers.emplace_back(work, std::ref(*lanes()[i]));
  work(main_lane());
  for (std::thread& worker : workers) worker.join();
  if (wrong > reports.size()) {
    reports.push_back(std::to_string(wrong) + " of " + std::to_string(count) + " cases are wrong");
  }
  return reports;
}

}  // namespace hpcattn::testkit
