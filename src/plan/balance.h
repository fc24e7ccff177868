// SPDX-License-Identifier: Apache-2.0
// The planner of a GPU: lengths -> tasks and combines. One cta runs it, with a barrier between its
// phases; a host runs the same phases thread after thread, in tests. docs/plan.md ("On a GPU")
// tells the idea.
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

template <typename Cta>
class Balancer {
 public:
  constexpr Balancer(Cta& cta, const BalanceInput& in, BalanceMemory& memory)
      : cta_(cta),
        in_(in),
        shape_(in.shape),
        num_workers_(in.num_workers),
        memory_(memory),
        totals_(memory.totals),
        index_(in, memory, cta.num_threads()) {}

  constexpr void run() {
    count_tiles();
    if (in_.is_prefill(index_.num_tokens())) {
      shape_.costs = in_.prefill.costs;
      num_workers_ = in_.prefill.num_workers;
    }
    if (totals_.num_tasks > 0) {
      number_pieces(shape_.fixed_split > 0 ? CutRule{} : find_rule());
    } else {
      emit({});
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
          set_counts(all.tiles * shape_.num_kv_heads, {});
        });
  }

  /// How a balanced plan cuts, from what its uncut tiles cost.
  constexpr CutRule find_rule() {
    const Chunks tiles = index_.tile_chunks();
    cta_.template scan<WorkSum>(
        tiles.active(),
        [&](int t) {
          WorkSum sum;
          for_each_tile(tiles, t, [&](const PlacedTile& at) {
            const std::uint32_t cost = at.tile.cost(shape_.costs);
            sum = sum + WorkSum{cost, cost, at.tile.wide ? 1U : 0U};
          });
          return sum;
        },
        [&](int t, const WorkSum&, const WorkSum& all) {
          if (t == 0) totals_.rule = cut_rule(shape_, totals_.tiles, num_workers_, all);
        });
    return totals_.rule;
  }

  template <typename Body>
  constexpr void for_each_tile(const Chunks& tiles, int t, const Body& body) const {
    PlacedTile at;
    HPCATTN_NO_UNROLL
    for (std::int32_t i = tiles.begin(t); i < tiles.end(t); ++i) {
      index_.find_tile(i, at);
      body(at);
    }
  }

  constexpr PieceSum pieces_of(const CutRule& rule, const PlacedTile& at) const {
    const std::int64_t pieces = num_pieces(shape_, rule, at.tile);
    if (pieces == 1) return {.pieces = 1};
    return {.pieces = pieces,
            .rows = pieces * at.num_rows(),
            .combines = static_cast<std::uint32_t>(num_combines(static_cast<std::int32_t>(pieces))),
            .cut = 1};
  }

  /// Pieces, partial rows and combines before each thread's tiles; then writes the plan.
  constexpr void number_pieces(const CutRule& rule) {
    const Chunks tiles = index_.tile_chunks();
    cta_.template scan<PieceSum>(
        tiles.active(),
        [&](int t) {
          PieceSum sum;
          for_each_tile(tiles, t, [&](const PlacedTile& at) { sum = sum + pieces_of(rule, at); });
          return sum;
        },
        [&](int t, const PieceSum& before, const PieceSum& all) {
          memory_.pieces_before[t] = static_cast<std::int32_t>(before.pieces);
          memory_.rows_before[t] = static_cast<std::int32_t>(before.rows);
          memory_.combines_before[t] = static_cast<std::int32_t>(before.combines);
          if (t > 0) return;
          totals_.pieces = static_cast<std::int32_t>(all.pieces);
          totals_.rows = static_cast<std::int32_t>(all.rows);
          totals_.combines = static_cast<std::int32_t>(all.combines);
          set_counts(of_heads(all.pieces), all);
        });
    emit(rule);
  }

  /// Pieces are dealt to the threads in runs; of few, a thread has some of the heads. The heads'
  /// tasks of a piece come one after the other: ctas that claim them at one time read neighbours in
  /// memory. The last tile's pieces come first: of a causal prompt they are the longest.
  constexpr void emit(const CutRule& rule) {
    const std::int32_t pieces = totals_.num_tasks > 0 ? totals_.pieces : 0;
    const std::int32_t heads = shape_.num_kv_heads;
    const std::int32_t parts =
        std::clamp(divide(cta_.num_threads(), std::max(pieces, 1)), 1, heads);
    const Chunks items(pieces * parts, cta_.num_threads());  // of a thread one, where parts > 1
    cta_.each(cta_.num_threads(), [&](int t) {
      const std::int32_t first = items.begin(t);
      const std::int32_t last = items.end(t);
      if (first < last) {
        const std::int32_t piece = divide(first, parts);
        const std::int32_t part = first - piece * parts;
        emit_run(rule, piece, divide(last - 1, parts) + 1, divide(part * heads, parts),
                 divide((part + 1) * heads, parts));
      }
      if (t == 0) write_head();
    });
  }

  /// Pieces [first, last) of one head, counted from the plan's end, for heads [begin, end).
  constexpr void emit_run(const CutRule& rule, std::int32_t first, std::int32_t last,
                          std::int32_t begin, std::int32_t end) {
    const std::int32_t chunk =
        last_at_most(memory_.pieces_before, index_.tile_chunks().active(), first);
    std::int32_t piece = first - memory_.pieces_before[chunk];  // of the tile
    std::int32_t tile = index_.tile_chunks().begin(chunk);
    std::int32_t rows = memory_.rows_before[chunk];
    std::int32_t combines = memory_.combines_before[chunk];
    PlacedTile at;
    index_.find_tile(tile, at);
    std::int32_t pieces = num_pieces(shape_, rule, at.tile);
    HPCATTN_NO_UNROLL
    for (std::int32_t j = first; j < last; ++j, ++piece) {
      HPCATTN_NO_UNROLL
      while (piece >= pieces) {  // the next tile
        piece -= pieces;
        const PieceSum done = pieces_of(rule, at);
        rows += static_cast<std::int32_t>(done.rows);
        combines += static_cast<std::int32_t>(done.combines);
        index_.find_tile(++tile, at);
        pieces = num_pieces(shape_, rule, at.tile);
      }
      const KvPiece kv{piece_begin(shape_, at.tile, piece, pieces),
                       piece_begin(shape_, at.tile, piece + 1, pieces), piece, pieces};
      HPCATTN_NO_UNROLL
      for (at.head = begin; at.head < end; ++at.head) {
        emit_piece(totals_.num_tasks - 1 - j * shape_.num_kv_heads - at.head, at, kv,
                   at.head * totals_.rows + rows, at.head * totals_.combines + combines);
      }
    }
  }

  /// A part of a tile's KV range: piece `index` of `count`.
  struct KvPiece {
    std::int32_t begin;
    std::int32_t end;
    std::int32_t index;
    std::int32_t count;
  };

  /// A task, and the combines whose first partial it makes. `partial`, `combine`: the tile's first.
  constexpr void emit_piece(std::int32_t task, const PlacedTile& at, const KvPiece& kv,
                            std::int32_t partial, std::int32_t combine) {
    if (kv.count == 1) {
      cta_.store(in_.plan + in_.layout.task(task), at.task(kv.begin, kv.end, -1, -1));
      return;
    }
    const JoinShape join(kv.count);
    const std::int32_t rows = at.num_rows();
    const std::int32_t mine = partial + kv.index * rows;
    const std::int32_t group = join.groups > 0 ? divide(kv.index, join.size) : -1;
    cta_.store(in_.plan + in_.layout.task(task),
               at.task(kv.begin, kv.end, mine, combine + 1 + group));
    if (kv.index == 0) {
      const bool two_steps = join.groups > 0;
      write_combine(combine, at.combine(partial, two_steps ? join.groups : kv.count,
                                        two_steps ? join.size * rows : rows, -1));
    }
    if (join.groups > 0 && group * join.size == kv.index) {
      write_combine(combine + 1 + group,
                    at.combine(mine, std::min(join.size, kv.count - kv.index), rows, combine));
    }
  }

  constexpr void write_combine(std::int32_t i, const Combine& combine) {
    cta_.store(in_.plan + in_.layout.combine(i), combine);
  }

  constexpr void write_head() {
    Header header = totals_.fill(in_.header);
    header.num_requests = index_.num_requests();
    header.num_tokens = static_cast<std::int32_t>(index_.num_tokens());
    cta_.store(in_.plan, header);
  }

  /// Heads times what is past 2^31 by far could pass 2^63.
  constexpr std::int64_t of_heads(std::int64_t sum) const {
    return sum > kMaxInt32 ? sum : sum * shape_.num_kv_heads;
  }

  /// By one thread. Nothing is planned where the tensor does not hold it.
  constexpr void set_counts(std::int64_t tasks, const PieceSum& of_head) {
    const std::int64_t combines = of_heads(of_head.combines);
    const std::int64_t rows = of_heads(of_head.rows);
    const std::int64_t whole = of_heads(totals_.tiles - of_head.cut);
    const bool fits = in_.holds(tasks, combines, rows);
    if (!fits) cta_.report(FaultKind::kPlanOverflow, tasks, combines, in_.layout.words, rows);
    totals_.num_tasks = fits ? static_cast<std::int32_t>(tasks) : 0;
    totals_.num_combines = fits ? static_cast<std::int32_t>(combines) : 0;
    totals_.num_partial_rows = fits ? static_cast<std::int32_t>(rows) : 0;
    totals_.num_partials = fits && of_head.cut > 0 ? static_cast<std::int32_t>(tasks - whole) : 0;
  }

  Cta& cta_;
  const BalanceInput& in_;
  PlanShape shape_;  // with the costs of who computes
  std::int32_t num_workers_;
  BalanceMemory& memory_;
  BalanceTotals& totals_;
  BatchIndex index_;
};

}  // namespace hpcattn::plan
