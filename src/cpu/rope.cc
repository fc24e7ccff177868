// SPDX-License-Identifier: Apache-2.0
// Tokens are shared out to threads; within a token, one head after the other is loaded, turned,
// normed and stored, so q and K are read once and nothing in between leaves the first cache.
#include "src/cpu/rope.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "src/common/float_bits.h"
#include "src/common/thread_pool.h"
#include "src/cpu/row_ops.h"
#include "src/cpu/store.h"

namespace hpcattn::cpu {
namespace {

/// RMSNorm weights as float64; empty without a norm.
std::vector<double> weights_of(const Tensor& weight) {
  if (!weight.defined()) return {};
  std::vector<double> values(static_cast<std::size_t>(weight.size(0)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] =
        load_float(weight.data(), weight.dtype(), static_cast<std::int64_t>(i) * weight.stride(0));
  }
  return values;
}

/// 1 / sqrt(mean square + eps). Without an epsilon, zeros stay zeros.
double norm_factor(double sum_squares, std::int64_t count, double eps) {
  const double under_root = sum_squares / static_cast<double>(count) + eps;
  return under_root == 0.0 ? 0.0 : 1.0 / std::sqrt(under_root);
}

/// The scale that brings `amax` to `upper_max`, as the float32 that is handed out. Held within the
/// normal numbers: never 0, never infinite.
float dynamic_scale(double amax, double upper_max) {
  if (amax == 0.0) return 1.0F;
  return static_cast<float>(std::clamp(amax / upper_max,
                                       static_cast<double>(std::numeric_limits<float>::min()),
                                       static_cast<double>(std::numeric_limits<float>::max())));
}

/// All that the tokens of a call have in common.
struct Prologue {
  const RopeNormStoreKvArgs& args;
  const TokenPlaces& places;
  const RowOps& ops;
  std::int64_t num_q_heads;
  std::int64_t num_kv_heads;
  std::int64_t head_dim;
  std::int64_t rotary_dim;
  std::vector<double> q_weight;
  std::vector<double> k_weight;
  std::vector<double> k_scales;
  std::vector<double> v_scales;

  Prologue(const RopeNormStoreKvArgs& call, const TokenPlaces& tokens)
      : args(call),
        places(tokens),
        ops(row_ops()),
        num_q_heads(call.q.size(1)),
        num_kv_heads(call.k.size(1)),
        head_dim(call.q.size(2)),
        rotary_dim(call.cos_sin.size(1)),
        q_weight(weights_of(call.q_norm_weight)),
        k_weight(weights_of(call.k_norm_weight)),
        k_scales(scales_of_heads(call.k_scale, num_kv_heads)),
        v_scales(scales_of_heads(call.v_scale, num_kv_heads)) {}
};

/// What one thread needs to work on tokens, one after the other.
class TokenWorker {
 public:
  explicit TokenWorker(const Prologue& prologue)
      : p_(prologue),
        args_(prologue.args),
        ops_(prologue.ops),
        row_(prologue.head_dim),
        cos_sin_(prologue.rotary_dim) {}

  void live_token(std::int64_t token) {
    load_cos_sin(token);
    const std::int64_t slot =
        p_.places.slots.empty() ? kNoSlot : p_.places.slots[static_cast<std::size_t>(token)];
    query(token);
    if (slot != kNoSlot || args_.out_k.defined()) key(token, slot);
    if (slot != kNoSlot || args_.out_v.defined()) value(token, slot);
  }

  void padding_token(std::int64_t token) {
    zero(args_.out_q, token);
    zero(args_.out_k, token);
    zero(args_.out_v, token);
    for (std::int64_t head = 0; args_.out_q_scale.defined() && head < p_.num_q_heads; ++head) {
      q_scale_at(token, head) = 0.0F;
    }
  }

 private:
  void load_cos_sin(std::int64_t token) {
    const std::int64_t half = p_.rotary_dim / 2;
    const auto load = [&](std::int64_t position, std::int64_t begin, std::int64_t count) {
      const std::int64_t element = size_bytes(args_.cos_sin.dtype());
      const char* row = row_address(args_.cos_sin, position, 0);
      ops_.load(row + begin * element, args_.cos_sin.dtype(), count, cos_sin_.data() + begin);
      ops_.load(row + (half + begin) * element, args_.cos_sin.dtype(), count,
                cos_sin_.data() + half + begin);
    };
    const auto& sections = args_.mrope_section;
    if (sections[0] + sections[1] + sections[2] == 0) {
      return load(p_.places.positions[static_cast<std::size_t>(token)], 0, half);
    }
    std::int64_t begin = 0;
    for (std::size_t axis = 0; axis < sections.size(); ++axis) {
      const std::size_t at = axis * static_cast<std::size_t>(p_.places.num_live);
      load(p_.places.positions[at + static_cast<std::size_t>(token)], begin, sections[axis]);
      begin += sections[axis];
    }
  }

  void rotate() {
    ops_.rotate(row_.data(), cos_sin_.data(), cos_sin_.data() + p_.rotary_dim / 2,
                p_.rotary_dim / 2, args_.style);
  }

  /// Leaves in row_ what the norm's mean square is taken of.
  void load_to_norm(const Tensor& input, std::int64_t token, std::int64_t head) {
    ops_.load(row_address(input, token, head), input.dtype(), p_.head_dim, row_.data());
    if (args_.norm_policy != QkNormPolicy::kNormThenRope) rotate();
  }

  /// The factor of all heads of a token where they are normed together, else of none.
  double token_factor(const Tensor& input, std::int64_t token) {
    if (args_.norm_policy == QkNormPolicy::kNone || args_.norm_scope == NormScope::kHead)
      return 1.0;
    double sum = 0.0;
    for (std::int64_t head = 0; head < input.size(1); ++head) {
      load_to_norm(input, token, head);
      sum += ops_.sum_squares(row_.data(), p_.head_dim);
    }
    return norm_factor(sum, input.size(1) * p_.head_dim, args_.norm_eps);
  }

  /// Leaves in row_ the normed and rotated head.
  void transform(const Tensor& input, std::int64_t token, std::int64_t head,
                 std::span<const double> weight, double factor_of_token) {
    load_to_norm(input, token, head);
    if (args_.norm_policy == QkNormPolicy::kNone) return;
    const bool by_head = args_.norm_scope == NormScope::kHead;
    const double factor = by_head ? norm_factor(ops_.sum_squares(row_.data(), p_.head_dim),
                                                p_.head_dim, args_.norm_eps)
                                  : factor_of_token;
    const double* head_weight = weight.data() + (by_head ? 0 : head * p_.head_dim);
    ops_.scale(row_.data(), head_weight, factor, p_.head_dim);
    if (args_.norm_policy == QkNormPolicy::kNormThenRope) rotate();
  }

  void query(std::int64_t token) {
    const double factor = token_factor(args_.q, token);
    for (std::int64_t head = 0; head < p_.num_q_heads; ++head) {
      transform(args_.q, token, head, p_.q_weight, factor);
      ops_.store(row_.data(), scale_of_query(token, head), p_.head_dim,
                 row_address(args_.out_q, token, head), args_.out_q.dtype());
    }
  }

  /// The scale of the q head in row_; hands the scale out where the caller asks for it.
  double scale_of_query(std::int64_t token, std::int64_t head) {
    if (!is_fp8(args_.out_q.dtype())) return 1.0;
    const float scale =
        args_.q_scale.defined()
            ? args_.q_scale.data_as<const float>()[0]
            : dynamic_scale(ops_.max_abs(row_.data(), p_.head_dim), args_.upper_max);
    if (args_.out_q_scale.defined()) q_scale_at(token, head) = scale;
    return static_cast<double>(scale);
  }

  float& q_scale_at(std::int64_t token, std::int64_t head) {
    return *reinterpret_cast<float*>(row_address(args_.out_q_scale, token, head));
  }

  void key(std::int64_t token, std::int64_t slot) {
    const double factor = token_factor(args_.k, token);
    const CachePlace place = slot == kNoSlot ? CachePlace{} : CachePlace(args_.k_cache, slot);
    for (std::int64_t head = 0; head < p_.num_kv_heads; ++head) {
      transform(args_.k, token, head, p_.k_weight, factor);
      const double scale = p_.k_scales[static_cast<std::size_t>(head)];
      const auto store = [&](char* target, DType dtype) {
        ops_.store(row_.data(), scale, p_.head_dim, target, dtype);
      };
      if (slot != kNoSlot) store(place.head(head), args_.k_cache.dtype());
      if (args_.out_k.defined()) store(row_address(args_.out_k, token, head), args_.out_k.dtype());
    }
  }

  void value(std::int64_t token, std::int64_t slot) {
    const CachePlace place = slot == kNoSlot ? CachePlace{} : CachePlace(args_.v_cache, slot);
    const auto row_bytes = static_cast<std::size_t>(p_.head_dim * size_bytes(args_.v.dtype()));
    for (std::int64_t head = 0; head < p_.num_kv_heads; ++head) {
      const char* input = row_address(args_.v, token, head);
      const auto store = [&](char* target, DType dtype) {
        if (target == input) return;  // out_v is v itself
        if (dtype == args_.v.dtype()) {
          std::memcpy(target, input, row_bytes);
          return;
        }
        ops_.load(input, args_.v.dtype(), p_.head_dim, row_.data());
        ops_.store(row_.data(), p_.v_scales[static_cast<std::size_t>(head)], p_.head_dim, target,
                   dtype);
      };
      if (slot != kNoSlot) store(place.head(head), args_.v_cache.dtype());
      if (args_.out_v.defined()) store(row_address(args_.out_v, token, head), args_.out_v.dtype());
    }
  }

  static void zero(const Tensor& output, std::int64_t token) {
    if (!output.defined()) return;
    const std::int64_t row_bytes = output.size(2) * size_bytes(output.dtype());
    for (std::int64_t head = 0; head < output.size(1); ++head) {
      std::memset(row_address(output, token, head), 0, static_cast<std::size_t>(row_bytes));
    }
  }

  const Prologue& p_;
  const RopeNormStoreKvArgs& args_;
  const RowOps& ops_;
  RowBuffer row_;
  RowBuffer cos_sin_;
};

}  // namespace

void rope_norm_store_kv(const RopeNormStoreKvArgs& args, const TokenPlaces& places,
                        const Execution& execution) {
  if (args.cleared.defined()) {
    std::memset(args.cleared.data(), 0,
                static_cast<std::size_t>(args.cleared.num_elements()) * sizeof(std::int32_t));
  }
  const Prologue prologue(args, places);
  const std::int64_t num_tokens = args.q.size(0);
  const std::int64_t step =
      tokens_per_task((prologue.num_q_heads + 2 * prologue.num_kv_heads) * prologue.head_dim);
  const auto num_tasks = static_cast<int>((num_tokens + step - 1) / step);
  run_parallel(execution, num_tasks, [&](int task) {
    TokenWorker worker(prologue);
    const std::int64_t end = std::min(num_tokens, (task + 1) * step);
    for (std::int64_t token = task * step; token < end; ++token) {
      if (token < places.num_live) {
        worker.live_token(token);
      } else {
        worker.padding_token(token);
      }
    }
  });
}

}  // namespace hpcattn::cpu
