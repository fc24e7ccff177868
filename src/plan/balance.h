// SPDX-License-Identifier: Apache-2.0
// The planner of a GPU: lengths -> tasks, combines, and which tasks are whose. One cta runs it,
// with a barrier between its phases; a host runs the same phases thread after thread, in tests.
// docs/plan.md ("On a GPU") tells the idea.
//
// `Cta` gives what a phase needs of its surroundings:
//   num_threads()                     threads of the cta
//   each(active, f)                   f(t) for each thread t < active, then a barrier
//   scan<Sum>(active, make, use)      use(t, sum of make() before t, sum of all), then a barrier;
//                                     thread 0 always takes part
//   store(words, value)               a Task, Combine or Header to 16-byte aligned words
//   report(kind, a, b, c, d)          a fault
//   kChecked                          whether lengths are checked
#pragma once

#include "kernels/tile/fault.h"
#include "src/plan/batch_index.h"

namespace hpcattn::plan {

/// kMode is kFixed where shape.fixed_split is given, else kBalanced.
template <CutMode kMode, typename Cta>
class Balancer {
 public:
  constexpr Balancer(Cta& cta, const BalanceInput& in, BalanceMemory& memory)
      : cta_(cta),
        in_(in),
        shape_(in.shape),
        memory_(memory),
        totals_(memory.totals),
        index_(in, memory, cta.num_threads()),
        num_workers_(static_cast<std::int32_t>(in.layout.num_workers)) {}

  constexpr void run() {
    count_tiles();
    if (totals_.num_tasks > 0) {
      sum_costs();
      if constexpr (kMode == CutMode::kFixed) {
        number_pieces();
      } else {
        place_boundaries();
        number_cuts();
      }
    }
    if (totals_.num_tasks == 0) clear();
    if constexpr (kMode == CutMode::kFixed) {
      emit_pieces();
    } else {
      emit_shares();
    }
  }

 private:
  /// Row tiles of one KV head before each request, and the lengths into shared memory.
  constexpr void count_tiles() {
    const Chunks requests(index_.num_requests(), cta_.num_threads());
    const bool cached = index_.is_cached();
    cta_.template scan<TileSum>(
        requests.active(),
        [&](int t) {
          TileSum sum;
          HPCATTN_NO_UNROLL
          for (std::int32_t i = requests.begin(t); i < requests.end(t); ++i) {
            if constexpr (Cta::kChecked) {
              check_request(in_.lengths, i, shape_.max_tokens, [&](const LengthFault& fault) {
                cta_.report(FaultKind::kLength, fault.which, fault.index, fault.value, fault.limit);
              });
            }
            const Request request = in_.lengths.request(i, shape_.max_tokens);
            if (cached) {
              memory_.cu_seqlens_q[i] = request.first_token;
              memory_.kv_lens[i] = request.kv_len;
              if (i + 1 == index_.num_requests()) {
                memory_.cu_seqlens_q[i + 1] = static_cast<std::int32_t>(in_.lengths.q_end(i + 1));
              }
            }
            sum.tiles += num_row_tiles(shape_, request.num_tokens);
            sum.hash += hash_of(i, request);
          }
          return sum;
        },
        [&](int t, const TileSum& before, const TileSum& all) {
          std::int64_t tiles = before.tiles;
          HPCATTN_NO_UNROLL
          for (std::int32_t i = requests.begin(t); i < requests.end(t); ++i) {
            index_.tile_begin()[i] = static_cast<std::int32_t>(tiles);
            tiles += num_row_tiles(shape_, index_.request(i).num_tokens);
          }
          if (t > 0) return;
          index_.tile_begin()[index_.num_requests()] = static_cast<std::int32_t>(all.tiles);
          totals_.tiles = all.tiles;
          totals_.lengths_hash = all.hash;
          // A task a tile, for now; where they fit, a tile's number fits an int32.
          set_counts(all.tiles * shape_.num_kv_heads, 0, 0);
        });
  }

  /// Costs of the tiles before each thread's, and what follows from their sum.
  constexpr void sum_costs() {
    const Chunks tiles = index_.tile_chunks();
    cta_.template scan<WorkSum>(
        tiles.active(),
        [&](int t) {
          WorkSum sum;
          PlacedTile at;
          HPCATTN_NO_UNROLL
          for (std::int32_t i = tiles.begin(t); i < tiles.end(t); ++i) {
            index_.find_tile(i, at);
            const std::uint32_t cost = at.tile.cost(shape_.costs);
            sum = sum + WorkSum{cost, cost, num_pieces(shape_, at.tile)};
          }
          return sum;
        },
        [&](int t, const WorkSum& before, const WorkSum& all) {
          memory_.cost_before[t] = before.cost;
          memory_.pieces_before[t] = before.pieces;
          if (t == 0) totals_.set_work(shape_, num_workers_, all);
        });
  }

  /// Balanced: where each worker begins.
  constexpr void place_boundaries() {
    const Chunks workers(num_workers_ + 1, cta_.num_threads());
    cta_.each(workers.active(), [&](int t) {
      HPCATTN_NO_UNROLL
      for (std::int32_t w = workers.begin(t); w < workers.end(t); ++w) {
        memory_.boundary[w] = boundary_of(w);
      }
    });
  }

  constexpr Boundary boundary_of(std::int32_t w) const {
    if (totals_.deal == Deal::kUniform) return uniform_boundary(w);
    const bool even = totals_.deal == Deal::kEven;
    const std::int64_t of_head = even ? totals_.pieces : totals_.cost;
    const std::int64_t position = even ? w : w * totals_.share;
    if (position >= of_head * shape_.num_kv_heads) return {.item = num_items()};
    const std::int64_t head = position / of_head;
    PlacedTile at;
    const TilePlace place =
        index_.find(even ? WorkKind::kPieces : WorkKind::kCost, position - head * of_head, at);
    const std::int32_t item = static_cast<std::int32_t>(head) * index_.tiles_of_head() + place.tile;
    const auto offset = static_cast<std::uint32_t>(place.offset);
    const std::int32_t before = even ? even_steps_before(at.tile, static_cast<std::int32_t>(offset),
                                                         num_pieces(shape_, at.tile))
                                     : steps_before(shape_.costs, at.tile, offset);
    return boundary_within(item, at, before);
  }

  constexpr Boundary uniform_boundary(std::int32_t w) const {
    const std::int32_t begun = divide(w, totals_.workers_each);
    const std::int32_t item = begun * totals_.tiles_each;
    const std::int32_t piece = w - begun * totals_.workers_each;
    if (item >= num_items()) return {.item = num_items()};
    if (piece == 0) return {.item = item};
    PlacedTile at;
    index_.find_item(item, at);
    return boundary_within(item, at, even_steps_before(at.tile, piece, totals_.workers_each));
  }

  constexpr Boundary boundary_within(std::int32_t item, const PlacedTile& at,
                                     std::int32_t before) const {
    if (before == 0) return {.item = item};
    if (before == at.tile.steps()) return {.item = item + 1};
    return {
        .item = item, .kv = (at.tile.first_step() + before) * kDeviceTileKv, .rows = at.num_rows()};
  }

  /// Balanced: numbers tasks, partial rows and combines, and writes the combines.
  constexpr void number_cuts() {
    const Chunks workers(num_workers_ + 1, cta_.num_threads());
    cta_.template scan<CutSum>(
        workers.active(),
        [&](int t) {
          CutSum sum;
          HPCATTN_NO_UNROLL
          for (std::int32_t w = workers.begin(t); w < workers.end(t); ++w) sum = sum + cut_sum(w);
          return sum;
        },
        [&](int t, const CutSum& before, const CutSum& all) {
          CutSum sum = before;
          HPCATTN_NO_UNROLL
          for (std::int32_t w = workers.begin(t); w < workers.end(t); ++w) {
            sum = sum + cut_sum(w);
            Boundary& boundary = memory_.boundary[w];
            // An item's first task, and one for each cut of it.
            memory_.worker_begin[w] = boundary.item + sum.cuts;
            boundary.partial = sum.rows - boundary.rows;
            boundary.combine = sum.combines - 1;
          }
          if (t == 0) set_counts(std::int64_t{num_items()} + all.cuts, all.combines, all.rows);
        });
  }

  constexpr std::int32_t num_items() const { return index_.tiles_of_head() * shape_.num_kv_heads; }

  constexpr bool is_first_cut(std::int32_t w) const {
    const Boundary& previous = memory_.boundary[w - 1];
    return previous.item != memory_.boundary[w].item || !previous.cuts();
  }

  /// A cut begins a piece; the first of an item also ends one.
  constexpr CutSum cut_sum(std::int32_t w) const {
    const Boundary& boundary = memory_.boundary[w];
    if (!boundary.cuts()) return {};
    if (is_first_cut(w)) return {.cuts = 1, .rows = 2 * boundary.rows, .combines = 1};
    return {.cuts = 1, .rows = boundary.rows, .combines = 0};
  }

  /// The pieces of an item whose first cut is boundary `w`.
  constexpr std::int32_t num_splits(std::int32_t w) const {
    std::int32_t last = w;
    std::int32_t step = 1;  // cuts of an item are neighbours: most often there is one, seldom many
    HPCATTN_NO_UNROLL
    while (step > 0) {
      const bool inside = last + step <= num_workers_ &&
                          memory_.boundary[last + step].item == memory_.boundary[w].item;
      if (inside) last += step;
      step = inside ? step * 2 : step / 2;
    }
    return last - w + 2;
  }

  /// Fixed: partial rows and combines before each thread's tiles, and where each worker begins.
  constexpr void number_pieces() {
    const Chunks tiles = index_.tile_chunks();
    cta_.template scan<PartialSum>(
        tiles.active(),
        [&](int t) {
          PartialSum sum;
          PlacedTile at;
          HPCATTN_NO_UNROLL
          for (std::int32_t i = tiles.begin(t); i < tiles.end(t); ++i) {
            index_.find_tile(i, at);
            sum = sum + partials_of(at);
          }
          return sum;
        },
        [&](int t, const PartialSum& before, const PartialSum& all) {
          memory_.rows_before[t] = static_cast<std::int32_t>(before.rows);
          memory_.combines_before[t] = static_cast<std::int32_t>(before.combines);
          if (t > 0) return;
          const std::int64_t heads = shape_.num_kv_heads;
          totals_.rows = static_cast<std::int32_t>(all.rows);
          totals_.combines = static_cast<std::int32_t>(all.combines);
          // Rows of heads could pass 2^63 where those of one head are past 2^31 by far.
          const std::int64_t rows = all.rows > kMaxInt32 ? all.rows : all.rows * heads;
          set_counts(std::int64_t{totals_.pieces} * heads, all.combines * heads, rows);
        });
    if (totals_.num_tasks == 0) return;
    const Chunks workers(num_workers_ + 1, cta_.num_threads());
    cta_.each(workers.active(), [&](int t) {
      HPCATTN_NO_UNROLL
      for (std::int32_t w = workers.begin(t); w < workers.end(t); ++w) {
        memory_.worker_begin[w] = tasks_before(w * totals_.share);
      }
    });
  }

  constexpr PartialSum partials_of(const PlacedTile& at) const {
    const std::int64_t pieces = num_pieces(shape_, at.tile);
    if (pieces == 1) return {};
    return {.rows = pieces * at.num_rows(), .combines = 1};
  }

  /// Fixed: the tasks that begin before a position of the batch's cost.
  constexpr std::int32_t tasks_before(std::int64_t position) const {
    if (position >= totals_.cost * shape_.num_kv_heads) return totals_.num_tasks;
    const std::int64_t head = position / totals_.cost;
    PlacedTile at;
    const TilePlace place = index_.find(WorkKind::kCost, position - head * totals_.cost, at);
    return static_cast<std::int32_t>(head * totals_.pieces + place.pieces_before) +
           pieces_before(shape_, at.tile, static_cast<std::uint32_t>(place.offset));
  }

  constexpr void emit_shares() {
    const Chunks tasks(totals_.num_tasks, cta_.num_threads());
    cta_.each(cta_.num_threads(), [&](int t) {
      PlacedTile at;
      HPCATTN_NO_UNROLL
      for (std::int32_t j = tasks.begin(t); j < tasks.end(t); ++j) {
        const std::int32_t w = last_at_most(memory_.worker_begin, num_workers_ + 1, j);
        const Boundary begin = memory_.boundary[w];
        const Boundary end = memory_.boundary[w + 1];
        const bool begins_at_cut = begin.cuts() && j == memory_.worker_begin[w];
        const bool ends_at_cut = end.cuts() && j + 1 == memory_.worker_begin[w + 1];
        index_.find_item(begin.item + (j - memory_.worker_begin[w]), at);
        const std::int32_t partial = begins_at_cut ? begin.partial
                                     : ends_at_cut ? end.partial - end.rows
                                                   : -1;
        const std::int32_t combine = begins_at_cut ? begin.combine : ends_at_cut ? end.combine : -1;
        write_task(j, at.task(begins_at_cut ? begin.kv : at.tile.kv_begin,
                              ends_at_cut ? end.kv : at.tile.kv_end, partial, w, combine));
        if (ends_at_cut && !begins_at_cut) {
          write_combine(end.combine, at.combine(partial, num_splits(w + 1)));
        }
      }
      write_head(t);
    });
  }

  constexpr void emit_pieces() {
    const Chunks tasks(totals_.num_tasks, cta_.num_threads());
    cta_.each(cta_.num_threads(), [&](int t) {
      if (tasks.begin(t) < tasks.end(t)) emit_run(tasks.begin(t), tasks.end(t));
      write_head(t);
    });
  }

  /// Tasks [first, last) of even or fixed pieces.
  constexpr void emit_run(std::int32_t first, std::int32_t last) {
    const std::int32_t pieces_of_head = totals_.pieces;
    std::int32_t head = divide(first, pieces_of_head);
    std::int32_t piece = first - head * pieces_of_head;  // of the head, then of the tile
    const std::int32_t chunk =
        last_at_most(memory_.pieces_before, index_.tile_chunks().active(), piece);
    piece -= memory_.pieces_before[chunk];
    std::int32_t tile = index_.tile_chunks().begin(chunk);
    std::int32_t rows = head * totals_.rows + memory_.rows_before[chunk];
    std::int32_t combines = head * totals_.combines + memory_.combines_before[chunk];
    PlacedTile at;
    index_.find_tile(tile, at);
    std::int32_t pieces = num_pieces(shape_, at.tile);
    std::int32_t w = last_at_most(memory_.worker_begin, num_workers_ + 1, first);
    HPCATTN_NO_UNROLL
    for (std::int32_t j = first; j < last; ++j, ++piece) {
      HPCATTN_NO_UNROLL
      while (piece >= pieces) {  // the next tile
        piece -= pieces;
        const PartialSum done = partials_of(at);
        rows += static_cast<std::int32_t>(done.rows);
        combines += static_cast<std::int32_t>(done.combines);
        if (++tile == index_.tiles_of_head()) {
          tile = 0;
          ++head;
        }
        index_.find_tile(tile, at);
        pieces = num_pieces(shape_, at.tile);
      }
      HPCATTN_NO_UNROLL
      while (memory_.worker_begin[w + 1] <= j) ++w;
      at.head = head;
      const std::int32_t partial = pieces == 1 ? -1 : rows + piece * at.num_rows();
      write_task(
          j, at.task(piece_begin(shape_, at.tile, piece), piece_begin(shape_, at.tile, piece + 1),
                     partial, w, pieces == 1 ? -1 : combines));
      if (piece == 0 && pieces > 1) {
        write_combine(combines, at.combine(rows, pieces));
      }
    }
  }

  /// A plan without tasks.
  constexpr void clear() {
    const Chunks workers(num_workers_ + 1, cta_.num_threads());
    cta_.each(workers.active(), [&](int t) {
      HPCATTN_NO_UNROLL
      for (std::int32_t w = workers.begin(t); w < workers.end(t); ++w) memory_.worker_begin[w] = 0;
    });
  }

  constexpr void write_task(std::int32_t j, const Task& task) {
    cta_.store(in_.plan + in_.layout.task(j), task);
  }
  constexpr void write_combine(std::int32_t i, const Combine& combine) {
    cta_.store(in_.plan + in_.layout.combine(i), combine);
  }

  /// worker_begin by all threads, the header by the first.
  constexpr void write_head(int t) {
    const Chunks workers(num_workers_ + 1, cta_.num_threads());
    std::int32_t* worker_begin = in_.plan + in_.layout.worker_begin();
    HPCATTN_NO_UNROLL
    for (std::int32_t w = workers.begin(t); w < workers.end(t); ++w) {
      worker_begin[w] = memory_.worker_begin[w];
    }
    if (t > 0) return;
    Header header = totals_.fill(in_.header, shape_.num_kv_heads);
    header.num_requests = index_.num_requests();
    header.num_tokens = static_cast<std::int32_t>(in_.lengths.q_end(index_.num_requests()));
    cta_.store(in_.plan, header);
  }

  /// By one thread. Nothing is planned where the tensor does not hold it.
  constexpr void set_counts(std::int64_t tasks, std::int64_t combines, std::int64_t rows) {
    const bool fits = in_.holds(tasks, combines, rows);
    if (!fits) cta_.report(FaultKind::kPlanOverflow, tasks, combines, in_.layout.words, rows);
    totals_.num_tasks = fits ? static_cast<std::int32_t>(tasks) : 0;
    totals_.num_combines = fits ? static_cast<std::int32_t>(combines) : 0;
    totals_.num_partial_rows = fits ? static_cast<std::int32_t>(rows) : 0;
  }

  Cta& cta_;
  const BalanceInput& in_;
  const PlanShape& shape_;
  BalanceMemory& memory_;
  BalanceTotals& totals_;
  BatchIndex index_;
  std::int32_t num_workers_;
};

}  // namespace hpcattn::plan
