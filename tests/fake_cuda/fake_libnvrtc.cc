// SPDX-License-Identifier: Apache-2.0
// A stand-in of libnvrtc: the "machine code" is "cubin of " and the source, after FAKE_NVRTC_MS
// milliseconds (0). A source with "error" in it does not compile. FAKE_NVRTC_VERSION (130) is 10 *
// major + minor; to the file FAKE_NVRTC_LOG a byte is appended for each compilation.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

namespace {

struct Fake {
  std::string source;
  std::string log;
  std::string code;
};

int number(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

int give(const std::string& text, char* to) {
  std::memcpy(to, text.data(), text.size());
  return 0;
}

constexpr std::array<int, 4> kArchs = {75, 80, 86, 90};

}  // namespace

extern "C" {

const char* nvrtcGetErrorString(int) { return "NVRTC_ERROR_COMPILATION"; }
int nvrtcVersion(int* major, int* minor) {
  const int version = number("FAKE_NVRTC_VERSION", 130);
  *major = version / 10;
  *minor = version % 10;
  return 0;
}
int nvrtcGetNumSupportedArchs(int* count) {
  *count = int(kArchs.size());
  return 0;
}
int nvrtcGetSupportedArchs(int* archs) {
  std::memcpy(archs, kArchs.data(), sizeof(kArchs));
  return 0;
}
int nvrtcCreateProgram(Fake** program, const char* source, const char*, int, const char* const*,
                       const char* const*) {
  *program = new Fake{source, "", ""};
  return 0;
}
int nvrtcDestroyProgram(Fake** program) {
  delete *program;
  return 0;
}
int nvrtcCompileProgram(Fake* program, int, const char* const*) {
  std::this_thread::sleep_for(std::chrono::milliseconds(number("FAKE_NVRTC_MS", 0)));
  if (const char* path = std::getenv("FAKE_NVRTC_LOG")) {
    const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (write(fd, "x", 1) != 1) return 1;
    close(fd);
  }
  if (program->source.find("error") != std::string::npos) {
    program->log = "line 7: this is wrong";
    return 6;
  }
  program->code = "cubin of " + program->source;
  return 0;
}
int nvrtcGetProgramLogSize(Fake* program, std::size_t* size) {
  *size = program->log.size();
  return 0;
}
int nvrtcGetProgramLog(Fake* program, char* to) { return give(program->log, to); }
int nvrtcGetCUBINSize(Fake* program, std::size_t* size) {
  *size = program->code.size();
  return 0;
}
int nvrtcGetCUBIN(Fake* program, char* to) { return give(program->code, to); }
int nvrtcGetPTXSize(Fake* program, std::size_t* size) { return nvrtcGetCUBINSize(program, size); }
int nvrtcGetPTX(Fake* program, char* to) { return give(program->code, to); }

}  // extern "C"
