// SPDX-License-Identifier: Apache-2.0
#include "src/cuda/cubin_file.h"

#include <cstring>
#include <map>
#include <mutex>

#include "src/cuda/compile.h"
#include "src/cuda/sources.h"

namespace hpcattn::cuda {
namespace {

constexpr std::array<char, 8> kMagic = {'h', 'p', 'c', 'u', 'b', 'i', 'n', '1'};

struct FileHeader {
  std::array<char, 8> magic;
  Sha256::Digest key;
  std::uint64_t size;  // of the cubin, which is the rest of the file
  std::int32_t nvrtc_major;
  std::int32_t nvrtc_minor;
  Sha256::Digest checksum;  // of the cubin
};
static_assert(sizeof(FileHeader) == 88 && std::is_trivially_copyable_v<FileHeader>);

/// The texts do not change while the process lives.
Sha256::Digest source_digest(const EmbeddedSource& source) {
  static std::mutex mutex;
  static std::map<const char*, Sha256::Digest> known;
  const std::lock_guard lock(mutex);
  const auto found = known.find(source.text);
  if (found != known.end()) return found->second;
  return known[source.text] = Sha256().add(source.text).finish();
}

}  // namespace

Sha256::Digest cubin_key(const KernelVariant& variant, const std::string& arch, int nvrtc_major,
                         int nvrtc_minor) {
  Sha256 hash;
  hash.add({kMagic.data(), kMagic.size()}).add_field(arch).add_field(variant.source);
  hash.add_field(std::to_string(nvrtc_major)).add_field(std::to_string(nvrtc_minor));
  for (const std::string& option : compile_options()) hash.add_field(option);
  for (const EmbeddedSource& source : included_sources(variant.source)) {
    hash.add_field(source.name).add_field(hex(source_digest(source)));
  }
  return hash.finish();
}

std::string encode_cubin(const Sha256::Digest& key, const Cubin& cubin) {
  const FileHeader header{.magic = kMagic,
                          .key = key,
                          .size = cubin.bytes.size(),
                          .nvrtc_major = cubin.nvrtc_major,
                          .nvrtc_minor = cubin.nvrtc_minor,
                          .checksum = Sha256().add(cubin.bytes).finish()};
  std::string file(sizeof(header), '\0');
  std::memcpy(file.data(), &header, sizeof(header));
  return file + cubin.bytes;
}

std::optional<Cubin> decode_cubin(const Sha256::Digest& key, std::string_view file) {
  FileHeader header;
  if (file.size() <= sizeof(header)) return std::nullopt;
  std::memcpy(&header, file.data(), sizeof(header));
  file.remove_prefix(sizeof(header));
  if (header.magic != kMagic || header.key != key || header.size != file.size() ||
      header.checksum != Sha256().add(file).finish()) {
    return std::nullopt;
  }
  return Cubin{std::string(file), header.nvrtc_major, header.nvrtc_minor};
}

}  // namespace hpcattn::cuda
