// SPDX-License-Identifier: Apache-2.0
// Where the numbers of a tile lie in a slot of the ring. Plain functions, that the host tests.
#pragma once

#include "kernels/sm90/decode/config.h"

namespace hpcattn {

/// A slot is [page][lines of the dims][token][128 bytes]; of a token's line, the copy engine puts
/// 16-byte unit u where u ^ token % 8 counts.
template <DecodeSpec kSpec>
struct SlotPlace {
  static constexpr int kRowBytes =
      kSpec.attention.head_dim * static_cast<int>(size_bytes(kSpec.attention.kv_dtype));
  static constexpr int kLineBytes = DecodeLayout::kLineBytes;
  static constexpr int kBoxBytes = kSpec.box_tokens * kRowBytes;
  static constexpr int kUnits = kLineBytes / 16;  // of a line

  /// Bytes before a token's first line. With multiples of 16 tokens (of 32 up to 32 more) it may be
  /// added up.
  static constexpr int of_token(int token) {
    return token / kSpec.box_tokens * kBoxBytes + token % kSpec.box_tokens * kLineBytes;
  }
  /// Bytes from a token's first line to 16-byte unit `unit` of its row.
  static constexpr int of_unit(int unit, int token) {
    return of_line(unit) + ((unit % kUnits) ^ (token % 8)) * 16;
  }
  /// Of the unit's line alone.
  static constexpr int of_line(int unit) { return unit / kUnits * (kSpec.box_tokens * kLineBytes); }
};

}  // namespace hpcattn
