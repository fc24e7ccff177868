// SPDX-License-Identifier: Apache-2.0
// Choices read off a string of bytes, so that one string is one input, and a small change of it is
// a small change of the input. Past its end every choice is the first one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace hpcattn::fuzz {

class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), end_(data + size) {}

  std::uint8_t byte() { return data_ < end_ ? *data_++ : std::uint8_t{0}; }

  /// In [low, high], both included; high - low < 256.
  std::int64_t integer(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(byte()) % (high - low + 1);
  }

  /// True for `of_256` of the 256 values of a byte; false past the end.
  bool chance(int of_256) { return byte() > 255 - of_256; }

  template <typename T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[byte() % choices.size()];
  }

 private:
  const std::uint8_t* data_;
  const std::uint8_t* end_;
};

}  // namespace hpcattn::fuzz
