// SPDX-License-Identifier: Apache-2.0
#include "src/testing/guarded_buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <new>
#include <utility>

namespace hpcattn::testkit {
namespace {

constexpr std::uint8_t kSlackPattern = 0xa5;

std::size_t memory_page() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

}  // namespace

GuardedBuffer::GuardedBuffer(std::size_t bytes, GuardSide side, bool reserve_only) : size_(bytes) {
  const std::size_t page = memory_page();
  const std::size_t usable = (bytes + page - 1) / page * page;
  mapping_size_ = usable + 2 * page;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (reserve_only ? MAP_NORESERVE : 0);
  void* mapping = mmap(nullptr, mapping_size_, PROT_NONE, flags, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  mapping_ = static_cast<std::uint8_t*>(mapping);
  if (usable > 0 && mprotect(mapping_ + page, usable, PROT_READ | PROT_WRITE) != 0) {
    release();
    throw std::bad_alloc();
  }
  data_ = mapping_ + page + (side == GuardSide::kAfter ? usable - bytes : 0);
  if (reserve_only) return;
  std::memset(mapping_ + page, kSlackPattern, usable);
  std::memset(data_, kUnwritten, bytes);
}

GuardedBuffer::~GuardedBuffer() { release(); }

GuardedBuffer::GuardedBuffer(GuardedBuffer&& other) noexcept { *this = std::move(other); }

GuardedBuffer& GuardedBuffer::operator=(GuardedBuffer&& other) noexcept {
  if (this == &other) return *this;
  release();
  mapping_ = std::exchange(other.mapping_, nullptr);
  mapping_size_ = std::exchange(other.mapping_size_, 0);
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  return *this;
}

void GuardedBuffer::release() {
  if (mapping_ != nullptr) munmap(mapping_, mapping_size_);
  mapping_ = nullptr;
}

bool GuardedBuffer::slack_intact() const {
  const std::size_t page = memory_page();
  const std::uint8_t* end = mapping_ + mapping_size_ - page;
  for (const std::uint8_t* byte = mapping_ + page; byte < data_; ++byte) {
    if (*byte != kSlackPattern) return false;
  }
  for (const std::uint8_t* byte = data_ + size_; byte < end; ++byte) {
    if (*byte != kSlackPattern) return false;
  }
  return true;
}

std::vector<std::uint8_t> GuardedBuffer::bytes() const { return {data_, data_ + size_}; }

}  // namespace hpcattn::testkit
