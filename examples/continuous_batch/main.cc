// SPDX-License-Identifier: Apache-2.0
// Serves eight requests as a small continuous batch with the public C++ API of hpcattn alone, then
// recomputes each of them densely in float64 and compares. Exits with 1 where they differ.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <random>

#include "dense.h"
#include "hpcattn/error.h"
#include "model.h"
#include "page_pool.h"
#include "scheduler.h"
#include "server.h"

namespace {

using namespace example;

/// Difference of two logits that float32 explains: rounding of sums of 384 products through 4
/// layers, relative to the largest logit of the row.
constexpr double kBound = 3e-5;

std::deque<Request> make_requests(const Config& config) {
  struct Size {
    std::size_t prompt, generated;
  };
  // Shorter and longer than a page and than the window; one that ends on a page's last slot.
  constexpr Size kSizes[] = {{5, 12}, {40, 8}, {17, 15}, {70, 10},
                             {1, 20}, {33, 6}, {52, 12}, {24, 9}};
  std::mt19937 generator(7);
  std::uniform_int_distribution<int> token(0, config.vocab - 1);
  std::deque<Request> requests;
  for (const Size& size : kSizes) {
    Request request;
    request.id = int(requests.size());
    for (std::size_t i = 0; i < size.prompt; ++i) request.tokens.push_back(token(generator));
    request.prompt_len = size.prompt;
    request.max_len = size.prompt + size.generated;
    requests.push_back(std::move(request));
  }
  return requests;
}

/// The largest difference of a served logit from the dense one, over the row's largest logit;
/// infinite where a generated token is not the dense choice either.
double worst_difference(const Model& model, const Request& request) {
  const std::size_t vocab = std::size_t(model.config.vocab);
  const std::vector<double> dense = dense_logits(model, request.tokens);
  double worst = 0;
  for (std::size_t step = 0; step < request.logits.size(); ++step) {
    const std::size_t position = request.prompt_len + step;  // of the token generated here
    const double* row = &dense[(position - 1) * vocab];
    double largest = 0;
    for (std::size_t i = 0; i < vocab; ++i) largest = std::max(largest, std::abs(row[i]));
    for (std::size_t i = 0; i < vocab; ++i) {
      const double difference = std::abs(double(request.logits[step][i]) - row[i]) / largest;
      if (!(difference <= worst)) worst = difference;  // NaN too
    }
    const double best = *std::max_element(row, row + vocab);
    if (best - row[request.tokens[position]] > kBound * largest) return INFINITY;
  }
  return worst;
}

int serve() {
  const Config config;
  const Model model(config, 2026);
  PagePool pool(config, 12);
  Scheduler scheduler(pool, make_requests(config));

  int steps = 0;
  std::size_t num_tokens = 0;
  while (!scheduler.done()) {
    std::printf("step %d\n", steps++);
    Batch batch = scheduler.next_batch();
    num_tokens += batch.tokens.size();
    scheduler.finish_step(batch, run_step(model, pool, batch));
  }
  std::printf("%zu requests, %zu tokens in %d steps; %d pages, handed out again %d times\n",
              scheduler.finished().size(), num_tokens, steps, pool.num_pages(), pool.num_reused());

  bool equal = pool.num_free() == pool.num_pages() && pool.num_reused() > 0;
  for (const Request& request : scheduler.finished()) {
    const double difference = worst_difference(model, request);
    const bool within = difference <= kBound;
    equal = equal && within;
    std::printf("request %d: largest relative difference of a logit %.1e%s\n", request.id,
                difference, within ? "" : "  TOO LARGE");
  }
  std::printf(
      equal ? "The served output is equal to the dense recomputation in float64 (bound %.0e).\n"
            : "The served output DIFFERS from the dense recomputation in float64 (bound %.0e).\n",
      kBound);
  return equal ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return serve();
  } catch (const hpcattn::Error& error) {
    std::fprintf(stderr, "hpcattn refused: %s\n", error.what());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "failed: %s\n", error.what());
  }
  return 1;
}
