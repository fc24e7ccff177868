// SPDX-License-Identifier: Apache-2.0
// How fine a balanced plan cuts. Ctas claim tasks one by one, so a batch ends at most one piece
// after the mean; each piece costs its start, its end and a part in a join. constexpr, for the host
// and the device.
#pragma once

#include "kernels/tile/unroll.h"
#include "src/plan/kv_cut.h"

namespace hpcattn::plan {

/// The uncut tiles of one KV head, added up; {} is none.
struct WorkSum {
  std::int64_t cost = 0;
  std::uint32_t dearest = 0;
  std::uint32_t wide = 0;  // whether any is
  friend constexpr WorkSum operator+(const WorkSum& a, const WorkSum& b) {
    return {a.cost + b.cost, std::max(a.dearest, b.dearest), a.wide | b.wide};
  }
};

/// Each worker gets at most so many pieces of tiles that are alike; wide ones leave large partials.
constexpr int most_rounds(bool wide) { return wide ? 3 : 6; }
/// And about as many of others, or fewer.
inline constexpr int kPiecesPerWorker = 2;

/// Pieces of each of `tiles` that cost the same, so that as many rounds of workers as they take end
/// first. One thread does it while all others wait: divisions are few, and of 32 bits.
constexpr std::uint32_t pieces_of_alike(const PlanShape& shape, std::uint32_t tiles,
                                        std::uint32_t num_workers, const WorkSum& work) {
  const bool wide = work.wide != 0;
  const auto overhead = static_cast<std::uint32_t>(shape.costs.overhead(wide));
  const auto step = static_cast<std::uint32_t>(shape.costs.step(wide));
  if (work.dearest < overhead) return 1;  // a narrow one among wide ones
  const std::uint32_t steps = (work.dearest - overhead) / step;
  const std::uint32_t most = steps / static_cast<std::uint32_t>(shape.costs.min_steps(wide));
  const auto time = [&](std::uint32_t pieces) {
    const std::uint64_t rounds = ceil_div(tiles * pieces, num_workers);
    const std::uint64_t piece = std::uint64_t{ceil_div(steps, pieces)} * step + overhead;
    return rounds * piece + (pieces > 1 ? overhead : 0);
  };
  std::uint32_t best = 1;
  std::uint64_t best_time = 0;
  HPCATTN_NO_UNROLL
  for (std::uint32_t rounds = 1; rounds <= static_cast<std::uint32_t>(most_rounds(wide));
       ++rounds) {
    if (rounds * num_workers < 2 * tiles) continue;
    const std::uint32_t pieces = std::min(rounds * num_workers / tiles, most);
    if (pieces < 2) break;
    if (best_time == 0) best_time = time(1);
    const std::uint64_t one = time(pieces);
    if (one < best_time) {
      best = pieces;
      best_time = one;
    }
    if (pieces == most) break;
  }
  return best;
}

/// Whether wide tiles are best left whole, the dearest of which costs `dearest`, where each worker
/// has `share` to do: the last one would end before a join were done.
constexpr bool stay_whole(const PlanShape& shape, std::int64_t dearest, std::int64_t share) {
  return shape.costs.wide_join > 0 && dearest <= share + share / 8 + shape.costs.wide_join;
}

/// What a piece of a balanced plan is to cost, about. `tiles`: of one KV head, over 0.
constexpr CutRule cut_rule(const PlanShape& shape, std::int64_t tiles, std::int32_t num_workers,
                           const WorkSum& work) {
  const std::int64_t cost = work.cost * shape.num_kv_heads;
  const std::int64_t share = cost / num_workers;
  const bool wide = work.wide != 0;
  if (wide && stay_whole(shape, work.dearest, share)) return {};
  // Lengths of requests that decode together differ by little: an eighth is alike.
  if (tiles * work.dearest <= work.cost + work.cost / 8) {
    const std::uint32_t pieces =
        pieces_of_alike(shape, static_cast<std::uint32_t>(tiles * shape.num_kv_heads),
                        static_cast<std::uint32_t>(num_workers), work);
    if (pieces == 1) return {};
    // Rounded up: no tile then has one piece more.
    return {ceil_div(work.dearest, pieces)};
  }
  // Few tiles: a piece a worker, which is an eighth longer than the mean since tiles are cut whole
  // times. Many: those that are not cut fill what is left; wide ones, whose joins are dear, are cut
  // where they alone are longer than the mean, by an eighth.
  const bool few = 2 * tiles * shape.num_kv_heads < num_workers;
  // A wide tile's start and end are dear, so that its pieces must not be short.
  const std::int64_t least = wide ? 3 * shape.costs.wide_overhead : 0;
  const std::int64_t most = few    ? share + share / 8
                            : wide ? share - share / 4
                                   : share / kPiecesPerWorker;
  const std::int64_t piece = std::max(least, most) + 1;
  return {static_cast<std::uint32_t>(std::min<std::int64_t>(piece, kUncut))};
}

}  // namespace hpcattn::plan
