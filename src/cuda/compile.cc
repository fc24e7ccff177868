// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/compile.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <mutex>

#include "hpcattn/cuda.h"
#include "src/common/check.h"
#include "src/common/counter.h"
#include "src/cuda/environment.h"
#include "src/cuda/nvrtc.h"
#include "src/cuda/sources.h"

namespace hpcattn::cuda {
namespace {

std::mutex history_mutex;
std::vector<Compilation> history;

void remember(const std::string& name, const std::string& arch, double seconds) {
  static Counter counter("compilations");
  counter.add();
  const std::lock_guard lock(history_mutex);
  history.push_back({name, arch, seconds});
}

/// An nvrtcProgram that is destroyed at the end.
class OwnedProgram {
 public:
  OwnedProgram(const Nvrtc& nvrtc, const KernelVariant& variant) : nvrtc_(nvrtc) {
    const std::vector<EmbeddedSource> sources = included_sources(variant.source);
    std::vector<const char*> texts;
    std::vector<const char*> names;
    for (const EmbeddedSource& source : sources) {
      texts.push_back(source.text);
      names.push_back(source.name);
    }
    const int result = nvrtc_.create(&program_, variant.source.c_str(), "variant.cu",
                                     int(sources.size()), texts.data(), names.data());
    if (result != 0) {
      throw DeviceError(message("cuda: ", variant.name,
                                ": nvrtcCreateProgram failed: ", nvrtc_.error_text(result), "."));
    }
  }
  ~OwnedProgram() { nvrtc_.destroy(&program_); }
  OwnedProgram(const OwnedProgram&) = delete;
  OwnedProgram& operator=(const OwnedProgram&) = delete;

  int compile(const std::vector<std::string>& options) {
    std::vector<const char*> pointers;
    pointers.reserve(options.size());
    for (const std::string& option : options) pointers.push_back(option.c_str());
    return nvrtc_.compile(program_, int(pointers.size()), pointers.data());
  }

  std::string log() const { return text(nvrtc_.log_size, nvrtc_.log, true); }
  std::string binary(bool is_ptx) const {
    return is_ptx ? text(nvrtc_.ptx_size, nvrtc_.ptx, false)
                  : text(nvrtc_.cubin_size, nvrtc_.cubin, false);
  }

 private:
  std::string text(int (*size_of)(Program, std::size_t*), int (*get)(Program, char*),
                   bool drop_nul) const {
    std::size_t size = 0;
    if (size_of(program_, &size) != 0 || size == 0) return "";
    std::string bytes(size, '\0');
    if (get(program_, bytes.data()) != 0) return "";
    if (drop_nul) bytes.resize(bytes.find('\0') == std::string::npos ? size : bytes.find('\0'));
    return bytes;
  }

  const Nvrtc& nvrtc_;
  Program program_ = nullptr;
};

}  // namespace

Target target_of(const std::string& arch, const std::vector<int>& known_archs) {
  int wanted = 0;
  std::from_chars(arch.data() + std::min<std::size_t>(3, arch.size()), arch.data() + arch.size(),
                  wanted);
  if (std::find(known_archs.begin(), known_archs.end(), wanted) != known_archs.end()) {
    return {arch, false};
  }
  // Machine code runs on later members of its generation, if it is not of the "a" kind.
  int lower = 0;
  int newest = 0;
  for (int known : known_archs) {
    if (known > wanted) continue;
    newest = std::max(newest, known);
    if (known / 10 == wanted / 10) lower = std::max(lower, known);
  }
  if (lower > 0) return {message("sm_", lower), false};
  return {message("compute_", newest), true};
}

const std::vector<std::string>& compile_options() {
  static const std::vector<std::string> options = [] {
    std::vector<std::string> all = {"--std=c++20", "-default-device"};
    if (is_set("HPCATTN_LINE_INFO")) all.emplace_back("-lineinfo");
    if (is_set("HPCATTN_SANITIZER")) all.emplace_back("-DHPCATTN_SANITIZER");
    return all;
  }();
  return options;
}

std::string compile(const KernelVariant& variant, const std::string& arch) {
  const Nvrtc& n = nvrtc();
  const Target target = target_of(arch, n.archs);
  std::vector<std::string> options = compile_options();
  options.push_back("--gpu-architecture=" + target.option);
  OwnedProgram program(n, variant);
  const auto start = std::chrono::steady_clock::now();
  const int result = program.compile(options);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  remember(variant.name, arch, took.count());
  std::string binary = result == 0 ? program.binary(target.is_ptx) : "";
  if (binary.empty()) {
    throw DeviceError(message("cuda: ", variant.name, " does not compile for ", arch, " (libnvrtc ",
                              n.version_text(), ", ", n.library.path(), "): ", n.error_text(result),
                              ".\n", program.log()));
  }
  return binary;
}

std::vector<Compilation> compilations() {
  const std::lock_guard lock(history_mutex);
  return history;
}

}  // namespace hpcattn::cuda
