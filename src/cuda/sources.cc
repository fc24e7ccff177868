// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/sources.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>

namespace hpcattn::cuda {
namespace {

/// The name in `#include "name"` or `#include <name>`; empty where the line is none.
std::string_view included_name(std::string_view line) {
  const auto skip_blanks = [&] {
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  };
  skip_blanks();
  if (!line.starts_with('#')) return {};
  line.remove_prefix(1);
  skip_blanks();
  if (!line.starts_with("include")) return {};
  line.remove_prefix(7);
  skip_blanks();
  if (line.empty() || (line[0] != '"' && line[0] != '<')) return {};
  const char close = line[0] == '"' ? '"' : '>';
  line.remove_prefix(1);
  const std::size_t end = line.find(close);
  return end == std::string_view::npos ? std::string_view() : line.substr(0, end);
}

/// The text of an embedded source, or of the file that stands for it (HPCATTN_KERNEL_DIR).
const char* text_of(const EmbeddedSource& embedded) {
  const char* folder = std::getenv("HPCATTN_KERNEL_DIR");
  if (folder == nullptr || *folder == '\0') return embedded.text;
  static std::mutex mutex;
  static std::map<std::string, std::string> replaced;
  const std::lock_guard lock(mutex);
  const std::string path = std::string(folder) + "/" + embedded.name;
  const auto known = replaced.find(path);
  if (known != replaced.end()) return known->second.c_str();
  std::ifstream file(path, std::ios::binary);
  if (!file) return embedded.text;
  return (replaced[path] = std::string(std::istreambuf_iterator<char>(file), {})).c_str();
}

using Found = std::map<std::string_view, EmbeddedSource>;

void add_includes(std::string_view source, Found& found) {
  while (!source.empty()) {
    const std::size_t end = std::min(source.find('\n'), source.size());
    const std::string_view name = included_name(source.substr(0, end));
    source.remove_prefix(std::min(end + 1, source.size()));
    if (name.empty() || found.contains(name)) continue;
    for (const EmbeddedSource& embedded : embedded_sources()) {
      if (name != embedded.name) continue;
      const EmbeddedSource header = {embedded.name, text_of(embedded)};
      found[header.name] = header;
      add_includes(header.text, found);
    }
  }
}

}  // namespace

std::vector<EmbeddedSource> included_sources(std::string_view source) {
  Found found;
  add_includes(source, found);
  std::vector<EmbeddedSource> sources;
  sources.reserve(found.size());
  for (const auto& [name, embedded] : found) sources.push_back(embedded);
  return sources;
}

}  // namespace hpcattn::cuda
