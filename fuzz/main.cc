// SPDX-License-Identifier: Apache-2.0
// hpcattn_fuzz: random arguments for every operator, always the same ones for the same seed. Each
// call must be accepted, or refused by an hpcattn::Error before anything is written.
//
//   hpcattn_fuzz --inputs 1000000 --seed 1
//   hpcattn_fuzz --seed 1 --first 123456 --inputs 1    that one input again, with its message
#include <signal.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "fuzz/operators.h"
#include "src/testing/random.h"

namespace hpcattn::fuzz {
namespace {

struct Options {
  std::int64_t inputs = 20000;
  std::int64_t first = 0;
  std::uint64_t seed = 1;
};

struct Current {
  std::int64_t input = 0;
  std::uint64_t seed = 0;
};
volatile Current current;

/// Says which input it was, then dies as it would have.
void on_signal(int signal) {
  std::array<char, 160> text{};
  const int length = std::snprintf(
      text.data(), text.size(),
      "\nFAULT: signal %d. Again: hpcattn_fuzz --seed %llu --first %lld --inputs 1\n", signal,
      static_cast<unsigned long long>(current.seed), static_cast<long long>(current.input));
  if (write(STDERR_FILENO, text.data(), static_cast<std::size_t>(length)) < 0) _exit(2);
  ::signal(signal, SIG_DFL);
  raise(signal);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    char* end = nullptr;
    const long long value = i + 1 < argc ? std::strtoll(argv[i + 1], &end, 10) : -1;
    const bool number = end != nullptr && *end == '\0' && value >= 0;
    if (number && name == "--inputs") {
      options.inputs = value;
    } else if (number && name == "--first") {
      options.first = value;
    } else if (number && name == "--seed") {
      options.seed = static_cast<std::uint64_t>(value);
    } else {
      std::fprintf(stderr, "%s: expected --inputs N, --seed S or --first N, got %s\n", argv[0],
                   name.c_str());
      std::exit(2);
    }
  }
  return options;
}

int run(const Options& options) {
  constexpr std::size_t kOps = kOperatorNames.size();
  constexpr std::size_t kOutcomes = kOutcomeNames.size();
  std::array<std::array<std::int64_t, kOutcomes>, kOps> counts{};
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  double reported = 0.0;
  std::array<std::uint8_t, 384> bytes{};
  current.seed = options.seed;
  double slowest = 0.0;
  std::int64_t slowest_input = 0;
  for (std::int64_t i = 0; i < options.inputs; ++i) {
    const std::int64_t input = options.first + i;
    current.input = input;
    testkit::Rng rng(options.seed * 0x100000001b3ULL + static_cast<std::uint64_t>(input));
    for (std::size_t at = 0; at < bytes.size(); at += 8) {
      const std::uint64_t word = rng.next();
      std::memcpy(bytes.data() + at, &word, 8);
    }
    const double started = seconds();
    const Result result = run_input(bytes.data(), bytes.size());
    if (const double took = seconds() - started; took > slowest) {
      slowest = took;
      slowest_input = input;
    }
    ++counts[std::size_t(result.op)][std::size_t(result.outcome)];
    if (result.outcome == Outcome::kFault || options.inputs == 1) {
      std::printf("%s: %s: %s\n", kOperatorNames[std::size_t(result.op)],
                  kOutcomeNames[std::size_t(result.outcome)], result.message.c_str());
    }
    if (result.outcome == Outcome::kFault) {
      std::printf("Again: hpcattn_fuzz --seed %llu --first %lld --inputs 1\n",
                  static_cast<unsigned long long>(options.seed), static_cast<long long>(input));
      return 1;
    }
    if (i % 1024 == 0 && seconds() - reported >= 5.0) {
      reported = seconds();
      std::printf("%lld of %lld inputs, %.0f s\n", static_cast<long long>(i),
                  static_cast<long long>(options.inputs), reported);
      std::fflush(stdout);
    }
  }
  std::printf("%lld inputs of seed %llu in %.1f s, no fault\n",
              static_cast<long long>(options.inputs), static_cast<unsigned long long>(options.seed),
              seconds());
  std::printf("the slowest: input %lld, %.3f s\n", static_cast<long long>(slowest_input), slowest);
  std::printf("%-20s %12s %16s %12s %12s\n", "", kOutcomeNames[0], kOutcomeNames[1],
              kOutcomeNames[2], kOutcomeNames[3]);
  for (std::size_t op = 0; op < kOps; ++op) {
    std::printf("%-20s %12lld %16lld %12lld %12lld\n", kOperatorNames[op],
                static_cast<long long>(counts[op][0]), static_cast<long long>(counts[op][1]),
                static_cast<long long>(counts[op][2]), static_cast<long long>(counts[op][3]));
  }
  return 0;
}

}  // namespace
}  // namespace hpcattn::fuzz

int main(int argc, char** argv) {
  for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGILL}) {
    ::signal(signal, hpcattn::fuzz::on_signal);
  }
  return hpcattn::fuzz::run(hpcattn::fuzz::parse(argc, argv));
}
