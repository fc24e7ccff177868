// SPDX-License-Identifier: Apache-2.0
// Memory between two pages that no one may touch: a read or write one element too far is a SIGSEGV
// (or an ASan report), not a silent success.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hpcattn::testkit {

/// Which end of the memory touches its guard page. The rest of the last page, at the other end, is
/// filled with a pattern that slack_intact() looks at.
enum class GuardSide : std::uint8_t { kAfter, kBefore };

class GuardedBuffer {
 public:
  GuardedBuffer() = default;

  /// Starts as all bytes kUnwritten. `reserve_only`: without swap or memory for it until it is
  /// touched (for pools of many GiB), starting as zeros.
  explicit GuardedBuffer(std::size_t bytes, GuardSide side = GuardSide::kAfter,
                         bool reserve_only = false);
  ~GuardedBuffer();
  GuardedBuffer(GuardedBuffer&& other) noexcept;
  GuardedBuffer& operator=(GuardedBuffer&& other) noexcept;
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  /// As a number of any float format of the library, these bytes are NaN.
  static constexpr std::uint8_t kUnwritten = 0xff;

  void* data() const { return data_; }
  std::size_t size() const { return size_; }

  /// False when someone wrote between the memory and its far guard page.
  bool slack_intact() const;

  std::vector<std::uint8_t> bytes() const;

 private:
  void release();

  std::uint8_t* mapping_ = nullptr;
  std::size_t mapping_size_ = 0;
  std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace hpcattn::testkit
