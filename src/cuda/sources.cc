// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/sources.h"

#include <algorithm>
#include <map>

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

using Found = std::map<std::string_view, const char*>;

void add_includes(std::string_view source, Found& found) {
  while (!source.empty()) {
    const std::size_t end = std::min(source.find('\n'), source.size());
    const std::string_view name = included_name(source.substr(0, end));
    source.remove_prefix(std::min(end + 1, source.size()));
    if (name.empty() || found.contains(name)) continue;
    for (const EmbeddedSource& embedded : embedded_sources()) {
      if (name != embedded.name) continue;
      found[embedded.name] = embedded.text;
      add_includes(embedded.text, found);
    }
  }
}

}  // namespace

std::vector<EmbeddedSource> included_sources(std::string_view source) {
  Found found;
  add_includes(source, found);
  std::vector<EmbeddedSource> sources;
  sources.reserve(found.size());
  for (const auto& [name, text] : found) sources.push_back({name.data(), text});
  return sources;
}

}  // namespace hpcattn::cuda
