// SPDX-License-Identifier: Apache-2.0
// What `hpcattn doctor` reports, as JSON.
#include <sys/stat.h>

#include "hpcattn/cuda.h"
#include "src/common/check.h"
#include "src/cuda/cubin_store.h"
#include "src/cuda/device.h"
#include "src/cuda/driver.h"
#include "src/cuda/nvrtc.h"

namespace hpcattn::cuda {
namespace {

std::string quoted(std::string_view text) {
  std::string json = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') json += '\\';
    json += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return json + '"';
}

std::string number_list(const std::vector<int>& numbers) {
  std::string json = "[";
  for (int number : numbers) json += message(json.size() > 1 ? ", " : "", number);
  return json + "]";
}

std::string device_json(int index) {
  try {
    const DeviceInfo& info = device_info(index);
    return message("{\"index\": ", index, ", \"name\": ", quoted(info.name), ", \"capability\": \"",
                   info.major, ".", info.minor, "\", \"arch\": ", quoted(arch_of(info)),
                   ", \"num_sms\": ", info.num_sms, ", \"memory_bytes\": ", info.memory_bytes,
                   ", \"problem\": \"\"}");
  } catch (const Error& error) {
    return message("{\"index\": ", index, ", \"problem\": ", quoted(error.what()), "}");
  }
}

std::string driver_json(bool use_driver) {
  if (!use_driver) return "null";
  try {
    const Driver& d = driver();
    std::string devices;
    for (int i = 0; i < device_count(); ++i) {
      devices += (devices.empty() ? "" : ", ") + device_json(i);
    }
    return message("{\"path\": ", quoted(d.library.path()), ", \"cuda_version\": \"",
                   driver_cuda_version(), "\", \"devices\": [", devices, "], \"problem\": \"\"}");
  } catch (const Error& error) {
    return message("{\"path\": \"\", \"cuda_version\": \"\", \"devices\": [], \"problem\": ",
                   quoted(error.what()), "}");
  }
}

std::string nvrtc_json() {
  try {
    const Nvrtc& n = nvrtc();
    return message("{\"path\": ", quoted(n.library.path()), ", \"version\": \"", n.version_text(),
                   "\", \"archs\": ", number_list(n.archs), ", \"problem\": \"\"}");
  } catch (const Error& error) {
    return message("{\"path\": \"\", \"version\": \"\", \"archs\": [], \"problem\": ",
                   quoted(error.what()), "}");
  }
}

std::string folder_json(const std::string& path, const CubinFolder& folder) {
  const CubinFolder::Content content = folder.content();
  return message("{\"folder\": ", quoted(path), ", \"kernels\": ", content.files,
                 ", \"bytes\": ", content.bytes, ", \"problem\": ", quoted(folder.problem()), "}");
}

}  // namespace

int device_count() {
  int count = 0;
  check_driver(driver().device_count(&count), "cuda: cuDeviceGetCount");
  return count;
}

std::string driver_cuda_version() { return cuda_version(driver().version); }

std::string cache_folder() { return cache_path(); }

std::string status_json(bool use_driver) {
  CubinFolder cache = CubinFolder::private_to_user(cache_path());
  cache.try_write();
  std::string compiled;
  for (const Compilation& c : compilations()) {
    compiled += message(compiled.empty() ? "" : ", ", "{\"name\": ", quoted(c.name),
                        ", \"arch\": ", quoted(c.arch), ", \"seconds\": ", c.seconds, "}");
  }
  return message("{\"driver\": ", driver_json(use_driver), ", \"nvrtc\": ", nvrtc_json(),
                 ", \"cache\": ", folder_json(cache_path(), cache), ", \"shipped\": ",
                 folder_json(shipped_path(), CubinFolder::shipped(shipped_path())),
                 ", \"compilations\": [", compiled, "]}");
}

}  // namespace hpcattn::cuda
