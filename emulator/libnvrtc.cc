// SPDX-License-Identifier: Apache-2.0
// A libnvrtc that translates kernels for the CPU: the host's C++ compiler makes a shared library of
// them, with emulator/device in the place of kernels/ptx. HPCATTN_EMULATOR_CXX names another
// compiler than the one that built this, HPCATTN_EMULATOR_FLAGS more of its options.
#include <sys/wait.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "emulator/image.h"

namespace {

namespace fs = std::filesystem;

struct Program {
  std::string source;
  std::vector<std::pair<std::string, std::string>> headers;  // name, text
  std::string log;
  std::string image;
};

constexpr int kArchs[] = {80, 86, 89, 90, 100};
constexpr int kCompilationFailed = 6;  // NVRTC_ERROR_COMPILATION

// Every kernel has one parameter, a struct, and is called hpcattn_kernel; its dynamic shared memory
// is called hpcattn::shared.
constexpr const char* kPrelude = R"(
#include "prelude.h"
#include "emulator/image.h"
namespace hpcattn {
thread_local __attribute__((aligned(1024))) char shared[hpcattn::emulator::kSharedRoom];
}
)";
constexpr const char* kEntry = R"(
namespace hpcattn {
namespace emulator {
Machine* machine = nullptr;
template <typename Params>
constexpr std::size_t size_of_params(void (*)(Params)) { return sizeof(Params); }
template <typename Params>
void call(void (*kernel)(Params), const void* params) {
  kernel(*static_cast<const Params*>(params));
}
}  // namespace emulator
}  // namespace hpcattn
extern "C" __attribute__((visibility("default"))) const hpcattn::emulator::Entry hpcattn_entry = {
    [](hpcattn::emulator::Machine* machine) { hpcattn::emulator::machine = machine; },
    [](const void* params) { hpcattn::emulator::call(hpcattn_kernel, params); },
    []() -> char* { return hpcattn::shared; },
    hpcattn::emulator::size_of_params(hpcattn_kernel),
};
)";

constexpr const char* kFlags =
    "-std=c++20 -O1 -shared -fPIC -fvisibility=hidden -Wl,-Bsymbolic -w -D__CUDACC_RTC__"
    " -fno-extern-tls-init";

/// A folder that is gone at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "hpcattn-emulator-XXXXXX").string();
    if (mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

/// 900 of "--gpu-architecture=sm_90a".
int arch_of(int num_options, const char* const* options) {
  for (int i = 0; i < num_options; ++i) {
    const std::string option = options[i];
    const std::size_t at = option.find("gpu-architecture=");
    if (at == std::string::npos) continue;
    return std::atoi(option.c_str() + option.find('_', at) + 1) * 10;
  }
  return 800;
}

std::string from_environment(const char* variable, const char* otherwise) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

/// Of all that the source of a kernel does not tell.
std::uint64_t device_digest() {
  std::uint64_t digest = 0xcbf29ce484222325U;  // FNV-1a
  const auto add = [&](const std::string& text) {
    for (const char c : text) digest = (digest ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  };
  add(kPrelude);
  add(kEntry);
  add(kFlags);
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(HPCATTN_EMULATOR_DEVICE)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) add(read(file));
  return digest;
}

int give(const std::string& text, std::size_t bytes, char* to) {
  std::memcpy(to, text.c_str(), bytes);
  return 0;
}

}  // namespace

extern "C" {

const char* nvrtcGetErrorString(int result) {
  return result == 0 ? "NVRTC_SUCCESS" : "NVRTC_ERROR_COMPILATION";
}
int nvrtcVersion(int* major, int* minor) {
  // Of no real one: what it makes must not be taken for machine code. The minor one follows the
  // texts of emulator/device, which what was made of others is not right for.
  *major = 99;
  *minor = static_cast<int>(device_digest() % 1'000'000);
  return 0;
}
int nvrtcGetNumSupportedArchs(int* count) {
  *count = static_cast<int>(std::size(kArchs));
  return 0;
}
int nvrtcGetSupportedArchs(int* archs) {
  std::memcpy(archs, kArchs, sizeof(kArchs));
  return 0;
}
int nvrtcCreateProgram(Program** program, const char* source, const char*, int num_headers,
                       const char* const* headers, const char* const* names) {
  auto* made = new Program{.source = source, .headers = {}, .log = "", .image = ""};
  for (int i = 0; i < num_headers; ++i) made->headers.emplace_back(names[i], headers[i]);
  *program = made;
  return 0;
}
int nvrtcDestroyProgram(Program** program) {
  delete *program;
  *program = nullptr;
  return 0;
}
int nvrtcCompileProgram(Program* program, int num_options, const char* const* options) {
  const TemporaryFolder folder;
  if (folder.path().empty()) {
    program->log = "no temporary folder can be made";
    return kCompilationFailed;
  }
  for (const auto& [name, text] : program->headers) {
    // <algorithm> and the like are the compiler's own.
    if (name.find('/') != std::string::npos) write(folder.path() / "include" / name, text);
  }
  const fs::path source = folder.path() / "kernel.cc";
  const fs::path library = folder.path() / "kernel.so";
  const fs::path log = folder.path() / "log";
  write(source, kPrelude + program->source + kEntry);
  const std::string command =
      from_environment("HPCATTN_EMULATOR_CXX", HPCATTN_EMULATOR_CXX) + " " + kFlags +
      " -D__CUDA_ARCH__=" + std::to_string(arch_of(num_options, options)) + " " +
      from_environment("HPCATTN_EMULATOR_FLAGS", "") + " -I '" HPCATTN_EMULATOR_DEVICE "' -I '" +
      (folder.path() / "include").string() +
      "' -I '" HPCATTN_EMULATOR_ROOT "/include' -I '" HPCATTN_EMULATOR_ROOT "' -o '" +
      library.string() + "' '" + source.string() + "' > '" + log.string() + "' 2>&1";
  const int status = std::system(command.c_str());
  if (status != 0 || !fs::exists(library)) {
    program->log = command + "\n" + read(log);
    return kCompilationFailed;
  }
  program->image = hpcattn::emulator::make_image(read(library));
  return 0;
}
int nvrtcGetProgramLogSize(Program* program, std::size_t* size) {
  *size = program->log.size() + 1;
  return 0;
}
int nvrtcGetProgramLog(Program* program, char* text) {
  return give(program->log, program->log.size() + 1, text);
}
int nvrtcGetCUBINSize(Program* program, std::size_t* size) {
  *size = program->image.size();
  return 0;
}
int nvrtcGetCUBIN(Program* program, char* text) {
  return give(program->image, program->image.size(), text);
}
int nvrtcGetPTXSize(Program* program, std::size_t* size) {
  return nvrtcGetCUBINSize(program, size);
}
int nvrtcGetPTX(Program* program, char* text) { return nvrtcGetCUBIN(program, text); }

}  // extern "C"
