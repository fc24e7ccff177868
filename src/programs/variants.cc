// SPDX-License-Identifier: Apache-2.0
// hpcattn_variants: all kernels, listed or compiled for an arch. It needs libnvrtc, and no GPU.
//
//   hpcattn_variants                                     one JSON object a line: family and name
//   hpcattn_variants --arch sm_90a --output DIR          DIR/FAMILY_NUMBER.cubin, for cuobjdump
//   hpcattn_variants --arch sm_90a --ship DIR            as HPCATTN_CUBIN_DIR and the wheel have
//   them
//
// --family NAME and --filter TEXT (a part of a name; several are alternatives) choose some,
// --every N takes one of N, --jobs N compiles so many at once. Compiling adds "cpu_seconds" (of one
// core, so that it does not depend on what else runs) and "bytes" to each line, or "error", and the
// exit status is then 1.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "src/common/check.h"
#include "src/cuda/attention.h"
#include "src/cuda/compile.h"
#include "src/cuda/cubin_store.h"
#include "src/cuda/merge.h"
#include "src/cuda/plan.h"
#include "src/cuda/rope.h"
#include "src/cuda/rope_pairs.h"
#include "src/cuda/sources.h"
#include "src/cuda/step.h"
#include "src/cuda/store.h"

namespace hpcattn::cuda {
namespace {

struct Options {
  std::string arch;
  std::string output;
  std::string ship;
  std::string sources;
  std::string family;
  std::vector<std::string> filters;
  std::size_t every = 1;
  std::size_t jobs = 1;
};

struct Entry {
  std::string family;
  std::size_t number = 0;  // within its family
  KernelVariant variant;
};

/// Attention's tiles depend on the shared memory that an arch has.
std::vector<Entry> all_entries(const std::string& arch) {
  std::vector<Entry> entries;
  const auto add = [&](const char* family, std::vector<KernelVariant> variants) {
    for (std::size_t i = 0; i < variants.size(); ++i) {
      entries.push_back({family, i, std::move(variants[i])});
    }
  };
  add("attention", all_attention_variants(arch));
  add("decode", all_decode_variants(arch));
  add("prefill", all_prefill_variants(arch));
  add("plan", all_plan_variants());
  add("store", all_store_variants());
  add("rope", all_rope_variants());
  add("rope_pairs", all_rope_pairs_variants());
  add("merge", all_merge_variants());
  add("step", all_step_variants());
  return entries;
}

std::vector<Entry> chosen(const Options& options) {
  std::vector<Entry> entries = all_entries(options.arch.empty() ? "sm_90a" : options.arch);
  std::erase_if(entries, [&](const Entry& entry) {
    if (!options.family.empty() && entry.family != options.family) return true;
    const auto in_name = [&](const std::string& part) {
      return entry.variant.name.find(part) != std::string::npos;
    };
    const bool some = options.filters.empty() || std::ranges::any_of(options.filters, in_name);
    return !some || entry.number % options.every != 0;
  });
  return entries;
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '\n') {
      result += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + '"';
}

std::string line_of(const Entry& entry) {
  return "{\"family\": " + quoted(entry.family) + ", \"name\": " + quoted(entry.variant.name) +
         ", \"threads\": " + std::to_string(entry.variant.threads) +
         ", \"shared_bytes\": " + std::to_string(entry.variant.shared_bytes);
}

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// The rest of the line.
std::string compile_entry(const Options& options, const Entry& entry) {
  const double start = thread_seconds();
  const auto seconds = [&] {
    return ", \"cpu_seconds\": " + std::to_string(thread_seconds() - start);
  };
  if (!options.ship.empty()) {
    const std::int64_t bytes = write_shipped(entry.variant, options.arch, options.ship);
    return seconds() + ", \"bytes\": " + std::to_string(bytes) + "}";
  }
  const std::string cubin = compile(entry.variant, options.arch);
  const std::string end = seconds();
  const std::string path =
      options.output + "/" + entry.family + "_" + std::to_string(entry.number) + ".cubin";
  std::ofstream file(path, std::ios::binary);
  file.write(cubin.data(), static_cast<std::streamsize>(cubin.size()));
  if (!file.flush()) throw DeviceError(message("can not write ", path));
  return end + ", \"bytes\": " + std::to_string(cubin.size()) + ", \"file\": " + quoted(path) + "}";
}

void write_sources(const std::filesystem::path& folder) {
  for (const EmbeddedSource& source : embedded_sources()) {
    const std::filesystem::path path = folder / source.name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream file(path);
    file << source.text;
    if (!file.flush()) throw DeviceError(message("can not write ", path.string()));
  }
}

int run(const Options& options) {
  if (!options.sources.empty()) {
    write_sources(options.sources);
    return 0;
  }
  const std::vector<Entry> entries = chosen(options);
  if (options.arch.empty()) {
    for (const Entry& entry : entries) std::printf("%s}\n", line_of(entry).c_str());
    return 0;
  }
  std::atomic<std::size_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  const auto work = [&] {
    for (std::size_t i = next++; i < entries.size(); i = next++) {
      std::string line = line_of(entries[i]);
      try {
        line += compile_entry(options, entries[i]);
      } catch (const std::exception& error) {
        line += ", \"error\": " + quoted(error.what()) + "}";
        failed = true;
      }
      const std::lock_guard lock(mutex);
      std::printf("%s\n", line.c_str());
      std::fflush(stdout);
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < options.jobs; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  return failed ? 1 : 0;
}

/// A value of the command line, or the end of the program.
Options parse(const std::vector<std::string>& words) {
  Options options;
  for (std::size_t i = 0; i + 1 < words.size(); i += 2) {
    const std::string& key = words[i];
    const std::string& value = words[i + 1];
    if (key == "--arch") {
      options.arch = value;
    } else if (key == "--output") {
      options.output = value;
    } else if (key == "--ship") {
      options.ship = value;
    } else if (key == "--sources") {
      options.sources = value;
    } else if (key == "--family") {
      options.family = value;
    } else if (key == "--filter") {
      options.filters.push_back(value);
    } else if (key == "--every") {
      options.every = std::max<std::size_t>(1, std::strtoul(value.c_str(), nullptr, 10));
    } else if (key == "--jobs") {
      options.jobs = std::max<std::size_t>(1, std::strtoul(value.c_str(), nullptr, 10));
    } else {
      throw InvalidArgument(message("unknown option ", key));
    }
  }
  check(words.size() % 2 == 0, "option ", words.empty() ? "" : words.back(), " has no value");
  check(options.arch.empty() || !options.output.empty() || !options.ship.empty(),
        "--arch needs --output DIR or --ship DIR");
  return options;
}

}  // namespace
}  // namespace hpcattn::cuda

int main(int argc, char** argv) {
  try {
    return hpcattn::cuda::run(hpcattn::cuda::parse({argv + 1, argv + argc}));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "hpcattn_variants: %s\n", error.what());
    return 2;
  }
}
