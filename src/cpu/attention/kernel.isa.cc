// SPDX-License-Identifier: Apache-2.0
// The mainloop of attention on the CPU, compiled once for each instruction set: FlashAttention's
// online softmax (Dao 2023, section 3.1) over tiles of KV that are read where they lie.
#include <type_traits>

#include "src/cpu/attention/layouts.h"

namespace hpcattn::cpu::HPCATTN_ISA {
namespace {

alignas(64) constexpr std::byte kZeroRow[kMaxHeadDim * 4] = {};

/// Finds the rows of K and V of the keys [first_key, in.kv_end), one tile at most.
void locate(const TaskInput& in, std::int64_t first_key, KvTile& tile) {
  const std::int64_t left = in.kv_end - first_key;
  tile.first_key = first_key;
  tile.num_keys = static_cast<int>(left < kTileKv ? left : kTileKv);
  tile.any_absent = false;
  int key = 0;
  while (key < tile.num_keys) {
    const std::int64_t token = first_key + key;
    std::int64_t place = token;
    std::int64_t run = tile.num_keys - key;  // keys that follow each other in memory
    const std::byte* k = in.k.base;
    const std::byte* v = in.v.base;
    bool absent = false;
    if (in.page_ids != nullptr) {
      const std::int64_t page = token / in.page_size;
      const std::int64_t page_id = in.page_ids[page * in.page_id_stride];
      place = token - page * in.page_size;
      run = run < in.page_size - place ? run : in.page_size - place;
      absent = page_id < 0;
      if (!absent) {
        k += page_id * in.k.page_bytes;
        v += page_id * in.v.page_bytes;
      }
    }
    for (std::int64_t i = 0; i < run; ++i, ++key) {
      tile.k[key] = absent ? kZeroRow : k + (place + i) * in.k.token_bytes;
      tile.v[key] = absent ? kZeroRow : v + (place + i) * in.v.token_bytes;
      tile.absent[key] = absent;
    }
    tile.any_absent = tile.any_absent || absent;
  }
  for (; key < kTileKv; ++key) {
    tile.k[key] = tile.v[key] = kZeroRow;
    tile.absent[key] = true;
  }
}

/// float32 copies, in this thread's cache, of a tile in a narrow format.
template <KvType kType>
void widen(const TaskInput& in, const std::byte* const (&rows)[kTileKv], int num_keys, float* to,
           const std::byte* (&wide_rows)[kTileKv]) {
  for (int key = 0; key < kTileKv; ++key) {
    wide_rows[key] =
        key < num_keys ? reinterpret_cast<const std::byte*>(to + key * in.head_dim) : kZeroRow;
    if (key >= num_keys) continue;
    for (int dim = 0; dim < in.head_dim; dim += kLanes) {
      store(to + key * in.head_dim + dim, load_as_float<kType>(rows[key], dim));
    }
  }
}

/// Keys of a tile.
struct KeySpan {
  int first = 0;
  int count = 0;
};

template <KvType kType, int kRows, int kDimVecs>
HPCATTN_INLINE int accumulate_dims(const TaskInput& in, ProbabilityStrides strides, int row,
                                   KeySpan keys, const KvTile& tile, const std::byte* const* next,
                                   int dim, Scratch& s) {
  for (; dim + kDimVecs * kLanes <= in.head_dim; dim += kDimVecs * kLanes) {
    accumulate_block<kType, kRows, kDimVecs>(s.p + row * strides.row + keys.first * strides.key,
                                             strides, keys.count, tile.v + keys.first, next, dim,
                                             s.rescale + row, s.o + row * in.head_dim, in.head_dim);
  }
  if constexpr (kDimVecs > 1) {
    dim = accumulate_dims<kType, kRows, kDimVecs / 2>(in, strides, row, keys, tile, next, dim, s);
  }
  return dim;
}

/// o = rescale * o + P V, over the rows in blocks of kRows, then of fewer.
template <KvType kType, int kRows>
void accumulate(const TaskInput& in, ProbabilityStrides strides, RowSpan rows, KeySpan keys,
                const KvTile& tile, const std::byte* const* next, Scratch& s) {
  for (; rows.count >= kRows; rows.first += kRows, rows.count -= kRows) {
    accumulate_dims<kType, kRows, kPvDimVecs>(in, strides, rows.first, keys, tile, next, 0, s);
  }
  if constexpr (kRows > 1) {
    if (rows.count > 0) accumulate<kType, kRows - 1>(in, strides, rows, keys, tile, next, s);
  }
}

/// The same for a tile that some rows see in part and that holds an infinity or a NaN: each row by
/// itself, over the keys that it sees, since 0 times those is not 0.
template <KvType kType>
void accumulate_seen(const TaskInput& in, ProbabilityStrides strides, RowSpan rows,
                     const KvTile& tile, Scratch& s) {
  for (int row = rows.first; row < rows.first + rows.count; ++row) {
    const auto within = [&](std::int64_t key) {
      const std::int64_t local = key - tile.first_key;
      return static_cast<int>(local < 0 ? 0 : local > tile.num_keys ? tile.num_keys : local);
    };
    const int first = within(s.see_begin[row]);
    const int end = within(s.see_end[row]);
    const KeySpan keys{first, end > first ? end - first : 0};
    accumulate<kType, 1>(in, strides, {row, 1}, keys, tile, nullptr, s);
  }
}

template <KvType kType>
bool all_values_finite(const TaskInput& in, const KvTile& tile) {
  Vec zeros = {};
  for (int key = 0; key < tile.num_keys; ++key) {
    for (int dim = 0; dim < in.head_dim; dim += kLanes) {
      zeros += load_as_float<kType>(tile.v[key], dim) * 0.0F;
    }
  }
  return sum_of_lanes(zeros) == 0.0F;
}

void prepare_rows(const TaskInput& in, Scratch& s) {
  const int rows = in.rows * in.num_heads;
  for (int row = 0; row < kTileRows; ++row) {
    s.row_max[row] = -kInfinity;
    s.row_sum[row] = 0.0F;
    if (row < rows) continue;
    s.position[row] = s.see_begin[row] = 0;
    s.see_end[row] = INT32_MAX;
    s.slope[row] = 0.0F;
  }
  for (int i = 0; i < rows * in.head_dim; ++i) s.o[i] = 0.0F;
}

/// Keys that all rows of the task see: tiles inside need no mask.
struct SeenByAll {
  std::int64_t begin = 0;
  std::int64_t end = INT64_MAX;

  SeenByAll(const TaskInput& in, const Scratch& s) {
    for (int row = 0; row < in.rows; ++row) {
      if (s.see_begin[row] > begin) begin = s.see_begin[row];
      if (s.see_end[row] < end) end = s.see_end[row];
    }
  }
  bool holds(const KvTile& tile) const {
    return tile.first_key >= begin && tile.first_key + tile.num_keys <= end;
  }
};

template <typename Layout>
void finish_scores(const TaskInput& in, RowSpan rows, const KvTile& tile, const SeenByAll& seen,
                   Scratch& s) {
  if (in.softcap > 0.0F) {
    const float factor = in.softcap * kLog2E;
    Layout::for_each_score(rows, tile, s,
                           [=](Vec score, const ScoreLanes&) { return tanh(score) * factor; });
  }
  if (in.alibi) {
    Layout::for_each_score(rows, tile, s, [](Vec score, const ScoreLanes& lanes) {
      const IntVec distance = lanes.position - lanes.key;
      const IntVec absolute = distance < 0 ? -distance : distance;
      return score - lanes.slope * __builtin_convertvector(absolute, Vec);
    });
  }
  if (!seen.holds(tile)) {
    Layout::for_each_score(rows, tile, s, [](Vec score, const ScoreLanes& lanes) {
      const IntVec visible = (lanes.key >= lanes.see_begin) & (lanes.key < lanes.see_end);
      return visible ? score : broadcast(-kInfinity);
    });
  }
  if (tile.any_absent) {
    for (int key = 0; key < tile.num_keys; ++key) {
      if (tile.absent[key]) Layout::hide_key(rows, key, s);
    }
  }
}

/// Row i of those of a tile, of the KV head that lies `offset` bytes after the first one.
HPCATTN_INLINE const std::byte* row_of(const KvTile& tile, const std::byte* const* rows, int i,
                                       std::int64_t offset) {
  return rows[i] + (tile.absent[i] ? 0 : offset);
}

/// Rows that are read after each other, K of a tile, its V, then K of the next tile: row i of a
/// pair of them, where the first has `count` rows.
HPCATTN_INLINE const std::byte* row_ahead(int i, int count, const std::byte* const* rows,
                                          const KvTile& tile, std::int64_t offset,
                                          const std::byte* const* later_rows,
                                          const KvTile& later_tile, std::int64_t later_offset) {
  if (i < count) return row_of(tile, rows, i, offset);
  return row_of(later_tile, later_rows, (i - count) % kTileKv, later_offset);
}

/// All heads of a task against one tile, read in place. Tokens go first and heads second, as most
/// caches lie in memory. While `tokens_ahead` tokens are computed, as many after them are fetched:
/// far enough for memory to answer, near enough to be in the first cache still when their turn
/// comes.
template <KvType kType>
void step_narrow(const TaskInput& in, int tokens_ahead, const KvTile& tile, const KvTile& next,
                 const SeenByAll& seen, Scratch& s) {
  const int num_keys = tile.num_keys;
  for (int key = 0; key < num_keys; key += kNarrowKeys) {
    for (int head = 0; head < in.num_heads; ++head) {
      const std::int64_t k_offset = head * in.k.head_bytes;
      const std::byte* k[kNarrowKeys];
      const std::byte* ahead[kNarrowKeys];
      for (int i = 0; i < kNarrowKeys; ++i) {
        k[i] = row_of(tile, tile.k, key + i, k_offset);
        ahead[i] = row_ahead(key + i + tokens_ahead, num_keys, tile.k, tile, k_offset, tile.v, tile,
                             head * in.v.head_bytes);
      }
      Narrow::compute_scores<kType>(in, {head * in.rows, in.rows}, k, ahead, key, s);
    }
  }

  bool row_by_row[kTileRows];
  for (int head = 0; head < in.num_heads; ++head) {
    const RowSpan rows{head * in.rows, in.rows};
    finish_scores<Narrow>(in, rows, tile, seen, s);
    Narrow::softmax(rows, tile, s);
    row_by_row[head] = false;
    if (seen.holds(tile)) continue;
    KvTile of_head = tile;
    for (int i = 0; i < num_keys; ++i)
      of_head.v[i] = row_of(tile, tile.v, i, head * in.v.head_bytes);
    row_by_row[head] = !all_values_finite<kType>(in, of_head);
    if (row_by_row[head]) accumulate_seen<kType>(in, Narrow::kStrides, rows, of_head, s);
  }

  KvTile of_head = tile;
  const std::byte* ahead[kTileKv];
  for (int first = 0; first < num_keys; first += tokens_ahead) {
    const KeySpan keys{first, num_keys - first < tokens_ahead ? num_keys - first : tokens_ahead};
    for (int head = 0; head < in.num_heads; ++head) {
      if (row_by_row[head]) continue;
      const std::int64_t v_offset = head * in.v.head_bytes;
      for (int i = 0; i < keys.count; ++i) {
        of_head.v[first + i] = row_of(tile, tile.v, first + i, v_offset);
        ahead[i] = row_ahead(first + i + tokens_ahead, num_keys, tile.v, tile, v_offset, next.k,
                             next, head * in.k.head_bytes);
      }
      accumulate<kType, kPvRows>(in, Narrow::kStrides, {head * in.rows, in.rows}, keys, of_head,
                                 ahead, s);
    }
    // The output is rescaled by the tile's first keys alone.
    for (int row = 0; first == 0 && row < in.rows * in.num_heads; ++row) s.rescale[row] = 1.0F;
  }
}

/// What follows the scores of a wide tile; V as float32.
void finish_wide(const TaskInput& in, const KvTile& tile, const SeenByAll& seen, Scratch& s) {
  const RowSpan rows{0, in.rows};
  finish_scores<Wide>(in, rows, tile, seen, s);
  Wide::softmax(rows, tile, s);
  if (!seen.holds(tile) && !all_values_finite<KvType::kFloat32>(in, tile)) {
    accumulate_seen<KvType::kFloat32>(in, Wide::kStrides, rows, tile, s);
    return;
  }
  accumulate<KvType::kFloat32, kPvRows>(in, Wide::kStrides, rows, {0, tile.num_keys}, tile, nullptr,
                                        s);
}

template <KvType kType>
void step_wide(const TaskInput& in, const KvTile& tile, const SeenByAll& seen, Scratch& s) {
  if constexpr (kType == KvType::kFloat32) {
    Wide::compute_scores(in, tile, s);
    finish_wide(in, tile, seen, s);
  } else {
    KvTile widened = tile;
    widen<kType>(in, tile.k, tile.num_keys, s.k_rows, widened.k);
    widen<kType>(in, tile.v, tile.num_keys, s.v_rows, widened.v);
    Wide::compute_scores(in, widened, s);
    finish_wide(in, widened, seen, s);
  }
}

/// Tokens that are fetched ahead: 16 KiB of K or V, half of what a first cache holds.
int tokens_ahead(const TaskInput& in, int element_bytes) {
  const int token_bytes = in.num_heads * in.head_dim * element_bytes;
  int tokens = kNarrowKeys;
  while (tokens < kTileKv && 2 * tokens * token_bytes <= 16 * 1024) tokens *= 2;
  return tokens;
}

template <KvType kType, typename Layout>
void attend(const TaskInput& in, Scratch& s) {
  prepare_rows(in, s);
  Layout::prepare(in, s);
  const SeenByAll seen(in, s);
  const int ahead = tokens_ahead(in, kElementBytes<kType>);
  KvTile tiles[2];
  if (in.kv_begin < in.kv_end) locate(in, in.kv_begin, tiles[0]);
  int current = 0;
  for (std::int64_t key = in.kv_begin; key < in.kv_end; key += kTileKv, current ^= 1) {
    const KvTile& tile = tiles[current];
    KvTile& next = tiles[current ^ 1];
    if (key + kTileKv < in.kv_end) {
      locate(in, key + kTileKv, next);
    } else {
      next = tile;
    }
    if constexpr (std::is_same_v<Layout, Narrow>) {
      step_narrow<kType>(in, ahead, tile, next, seen, s);
    } else {
      step_wide<kType>(in, tile, seen, s);
    }
  }
}

template <typename Layout>
void fill(AttendFunction (&functions)[kNumKvTypes]) {
  functions[int(KvType::kFloat32)] = attend<KvType::kFloat32, Layout>;
  functions[int(KvType::kFloat16)] = attend<KvType::kFloat16, Layout>;
  functions[int(KvType::kBFloat16)] = attend<KvType::kBFloat16, Layout>;
  functions[int(KvType::kFloat8E4M3)] = attend<KvType::kFloat8E4M3, Layout>;
  functions[int(KvType::kFloat8E5M2)] = attend<KvType::kFloat8E5M2, Layout>;
}

}  // namespace

void fill_kernels(KernelTable& table) {
  table.isa = HPCATTN_ISA_NAME;
  fill<Narrow>(table.narrow);
  fill<Wide>(table.wide);
  table.load_row[int(KvType::kFloat32)] = load_row<KvType::kFloat32>;
  table.load_row[int(KvType::kFloat16)] = load_row<KvType::kFloat16>;
  table.load_row[int(KvType::kBFloat16)] = load_row<KvType::kBFloat16>;
  table.load_row[int(KvType::kFloat8E4M3)] = load_row<KvType::kFloat8E4M3>;
  table.load_row[int(KvType::kFloat8E5M2)] = load_row<KvType::kFloat8E5M2>;
  table.store_row[int(KvType::kFloat32)] = store_row<KvType::kFloat32>;
  table.store_row[int(KvType::kBFloat16)] = store_row<KvType::kBFloat16>;
#if defined(__AVX2__)
  table.store_row[int(KvType::kFloat16)] = store_row<KvType::kFloat16>;
#endif
}

}  // namespace hpcattn::cpu::HPCATTN_ISA
