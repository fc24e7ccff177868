// SPDX-License-Identifier: Apache-2.0
// The two shapes of a tile of scores. Narrow: [row][key], lanes are keys, for a few rows. Wide:
// [key][row], lanes are rows, for many. Both offer the same verbs, so the mainloop is written once.
// Included by *.isa.cc alone.
#pragma once

#include "src/cpu/attention/blocks.h"
#include "src/cpu/attention/math.h"

namespace hpcattn::cpu::HPCATTN_ISA {

/// The rows of K and V that a step of the mainloop reads. Entries past num_keys are a row of zeros.
struct KvTile {
  const std::byte* k[kTileKv];
  const std::byte* v[kTileKv];
  int num_keys = 0;
  std::int64_t first_key = 0;
  bool any_absent = false;    // keys of a page -1
  bool absent[kTileKv] = {};  // those, and entries past num_keys
};

/// The rows of one head within a task's.
struct RowSpan {
  int first = 0;
  int count = 0;
};

/// What is known of the scores of one vector: `key` and the row's facts, each a lane's own.
struct ScoreLanes {
  IntVec key;
  IntVec see_begin;
  IntVec see_end;
  IntVec position;
  Vec slope;
};

/// One vector's step of the running softmax: the new maximum's stand-in (0 where nothing was seen).
HPCATTN_INLINE Vec finite_or_zero(Vec row_max) { return row_max == -kInfinity ? Vec{} : row_max; }

struct Narrow {
  static constexpr ProbabilityStrides kStrides{kTileKv, 1};

  static void prepare(const TaskInput&, Scratch&) {}

  /// Of kNarrowKeys keys from `key` on, for one head. `ahead`: rows that will be read soon.
  template <KvType kType>
  static void compute_scores(const TaskInput& in, RowSpan rows, const std::byte* const* k,
                             const std::byte* const* ahead, int key, Scratch& s) {
    int row = rows.first;
    for (; row + kNarrowRowBlock <= rows.first + rows.count; row += kNarrowRowBlock) {
      block<kType, kNarrowRowBlock>(in, k, ahead, key, row, s);
    }
    for (; row < rows.first + rows.count; ++row) block<kType, 1>(in, k, ahead, key, row, s);
  }

  template <typename F>
  static HPCATTN_INLINE void for_each_score(RowSpan rows, const KvTile& tile, Scratch& s, F f) {
    for (int row = rows.first; row < rows.first + rows.count; ++row) {
      ScoreLanes lanes{.key = {},
                       .see_begin = broadcast(s.see_begin[row]),
                       .see_end = broadcast(s.see_end[row]),
                       .position = broadcast(s.position[row]),
                       .slope = broadcast(s.slope[row])};
      for (int key = 0; key < tile.num_keys; key += kLanes) {
        lanes.key = lane_index() + static_cast<std::int32_t>(tile.first_key + key);
        float* at = s.p + row * kTileKv + key;
        store(at, f(load(at), lanes));
      }
    }
  }

  static void hide_key(RowSpan rows, int key, Scratch& s) {
    for (int row = rows.first; row < rows.first + rows.count; ++row)
      s.p[row * kTileKv + key] = -kInfinity;
  }

  static void softmax(RowSpan rows, const KvTile& tile, Scratch& s) {
    for (int row = rows.first; row < rows.first + rows.count; ++row) {
      float* p = s.p + row * kTileKv;
      for (int key = tile.num_keys; key % kLanes != 0; ++key) p[key] = -kInfinity;
      Vec tile_max = broadcast(-kInfinity);
      for (int key = 0; key < tile.num_keys; key += kLanes) tile_max = max(load(p + key), tile_max);
      const float row_max = max_of_lanes(max(tile_max, broadcast(s.row_max[row])));
      const Vec reference = finite_or_zero(broadcast(row_max));
      Vec sum = {};
      for (int key = 0; key < tile.num_keys; key += kLanes) {
        const Vec weight = exp2(load(p + key) - reference);
        store(p + key, weight);
        sum += weight;
      }
      s.rescale[row] = exp2(broadcast(s.row_max[row]) - reference)[0];
      s.row_sum[row] = s.row_sum[row] * s.rescale[row] + sum_of_lanes(sum);
      s.row_max[row] = row_max;
    }
  }

 private:
  template <KvType kType, int kRows>
  static HPCATTN_INLINE void block(const TaskInput& in, const std::byte* const* k,
                                   const std::byte* const* ahead, int key, int row, Scratch& s) {
    narrow_scores<kType, kRows>(s.q + row * in.head_dim, in.head_dim, k, ahead,
                                s.p + row * kTileKv + key);
  }
};

struct Wide {
  static constexpr ProbabilityStrides kStrides{1, kTileRows};

  static void prepare(const TaskInput& in, Scratch& s) {
    const int padded = row_vecs(in) * kLanes;
    for (int row = 0; row < padded; ++row) {
      for (int dim = 0; dim < in.head_dim; ++dim) {
        s.q_transposed[dim * kTileRows + row] = row < in.rows ? s.q[row * in.head_dim + dim] : 0.0F;
      }
    }
  }

  /// K as float32.
  static void compute_scores(const TaskInput& in, const KvTile& tile, Scratch& s) {
    const auto* k_rows = reinterpret_cast<const float* const*>(tile.k);
    for (int key = 0; key < tile.num_keys; key += kWideKeys) {
      int vec = 0;
      for (; vec + kWideRowVecs <= row_vecs(in); vec += kWideRowVecs) {
        block<kWideRowVecs>(in, k_rows, key, vec, s);
      }
      if (row_vecs(in) - vec == 2) block<2>(in, k_rows, key, vec, s);
      if (row_vecs(in) - vec == 1) block<1>(in, k_rows, key, vec, s);
    }
  }

  template <typename F>
  static HPCATTN_INLINE void for_each_score(RowSpan rows, const KvTile& tile, Scratch& s, F f) {
    for (int row = 0; row < rows.count; row += kLanes) {
      ScoreLanes lanes{.key = {},
                       .see_begin = load(s.see_begin + row),
                       .see_end = load(s.see_end + row),
                       .position = load(s.position + row),
                       .slope = load(s.slope + row)};
      for (int key = 0; key < tile.num_keys; ++key) {
        lanes.key = broadcast(static_cast<std::int32_t>(tile.first_key + key));
        float* at = s.p + key * kTileRows + row;
        store(at, f(load(at), lanes));
      }
    }
  }

  static void hide_key(RowSpan rows, int key, Scratch& s) {
    for (int row = 0; row < rows.count; row += kLanes) {
      store(s.p + key * kTileRows + row, broadcast(-kInfinity));
    }
  }

  static void softmax(RowSpan rows, const KvTile& tile, Scratch& s) {
    for (int row = 0; row < rows.count; row += kLanes) {
      float* p = s.p + row;
      const Vec before = load(s.row_max + row);
      Vec row_max = before;
      for (int key = 0; key < tile.num_keys; ++key)
        row_max = max(load(p + key * kTileRows), row_max);
      const Vec reference = finite_or_zero(row_max);
      const Vec rescale = exp2(before - reference);
      Vec sum = load(s.row_sum + row) * rescale;
      for (int key = 0; key < tile.num_keys; ++key) {
        const Vec weight = exp2(load(p + key * kTileRows) - reference);
        store(p + key * kTileRows, weight);
        sum += weight;
      }
      store(s.rescale + row, rescale);
      store(s.row_sum + row, sum);
      store(s.row_max + row, row_max);
    }
  }

 private:
  static int row_vecs(const TaskInput& in) { return (in.rows + kLanes - 1) / kLanes; }

  template <int kVecs>
  static HPCATTN_INLINE void block(const TaskInput& in, const float* const* k_rows, int key,
                                   int vec, Scratch& s) {
    wide_scores<kVecs>(s.q_transposed + vec * kLanes, in.head_dim, k_rows + key,
                       s.p + key * kTileRows + vec * kLanes);
  }
};

}  // namespace hpcattn::cpu::HPCATTN_ISA
