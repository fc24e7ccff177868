// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/shared_library.h"

#include <dlfcn.h>
#include <link.h>

namespace hpcattn::cuda {
namespace {

struct LoadedSearch {
  const std::string& prefix;
  std::vector<std::string> found;
};

int visit_loaded(dl_phdr_info* info, std::size_t, void* data) {
  auto& search = *static_cast<LoadedSearch*>(data);
  const std::string path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
  const std::string file = path.substr(path.rfind('/') + 1);
  if (file.starts_with(search.prefix)) search.found.push_back(path);
  return 0;
}

std::string path_of(void* handle, const std::string& fallback) {
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, static_cast<void*>(&map)) != 0 || map == nullptr)
    return fallback;
  return map->l_name != nullptr && *map->l_name != '\0' ? map->l_name : fallback;
}

}  // namespace

SharedLibrary::SharedLibrary(const std::vector<std::string>& candidates) {
  for (const std::string& candidate : candidates) {
    handle_ = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) {
      path_ = path_of(handle_, candidate);
      return;
    }
    const char* reason = dlerror();
    attempts_ += (attempts_.empty() ? "" : "; ") + candidate;
    if (reason != nullptr) attempts_ += std::string(" (") + reason + ")";
  }
}

void* SharedLibrary::symbol(std::initializer_list<const char*> names) const {
  if (handle_ == nullptr) return nullptr;
  for (const char* name : names) {
    if (void* found = dlsym(handle_, name)) return found;
  }
  return nullptr;
}

std::vector<std::string> loaded_libraries(const std::string& prefix) {
  LoadedSearch search{prefix, {}};
  dl_iterate_phdr(&visit_loaded, &search);
  return search.found;
}

std::string own_library_path() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&own_library_path), &info) == 0) return "";
  return info.dli_fname == nullptr ? "" : info.dli_fname;
}

}  // namespace hpcattn::cuda
