// SPDX-License-Identifier: Apache-2.0
#include "src/cpu/attention/attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <string>

#include "src/common/counter.h"
#include "src/common/float_bits.h"
#include "src/common/thread_pool.h"
#include "src/cpu/attention/dispatch.h"
#include "src/ops/check_tensor.h"
#include "src/ops/query_scale.h"
#include "src/plan/rows.h"

namespace hpcattn::cpu {
namespace {

static_assert(kTileRows == plan::kTileRows && kTileKv == plan::kTileKv &&
              kNarrowRows == plan::kNarrowRows);

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kLog2E = 1.44269504088896340736;
constexpr double kLn2 = 0.69314718055994530942;

KvType kv_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return KvType::kFloat16;
    case DType::kBFloat16: return KvType::kBFloat16;
    case DType::kFloat8E4M3: return KvType::kFloat8E4M3;
    case DType::kFloat8E5M2: return KvType::kFloat8E5M2;
    default: return KvType::kFloat32;
  }
}

std::byte* row_of(const Tensor& tensor, std::int64_t token, std::int64_t head) {
  return tensor.data_as<std::byte>() +
         (token * tensor.stride(0) + head * tensor.stride(1)) * size_bytes(tensor.dtype());
}

/// A scale of [1] or [num_heads]; 1 where not given.
float scale_of(const Tensor& scale, std::int64_t head) {
  if (!scale.defined()) return 1.0F;
  return scale.data_as<const float>()[scale.size(0) == 1 ? 0 : head * scale.stride(0)];
}

/// Partial results of split rows: not normalised outputs, and each row's maximum and sum.
struct Partials {
  explicit Partials(std::int64_t rows, std::int64_t head_dim)
      : o(new float[static_cast<std::size_t>(rows * head_dim)]),
        row_max(new float[static_cast<std::size_t>(rows)]),
        row_sum(new float[static_cast<std::size_t>(rows)]) {}
  std::unique_ptr<float[]> o;
  std::unique_ptr<float[]> row_max;
  std::unique_ptr<float[]> row_sum;
};

class Runner {
 public:
  Runner(const AttentionProblem& problem, const plan::PlanView& plan)
      : p_(problem),
        head_dim_(problem.q.size(2)),
        group_(problem.q.size(1) / problem.k.size(-2)),
        partials_(plan.header->num_partial_rows, head_dim_),
        store_row_(kernels().store_row[int(kv_type(problem.out.dtype()))]) {
    if (is_fp8(p_.out.dtype())) store_row_ = nullptr;
  }

  void run_task(const plan::Task& task) {
    Scratch& scratch = this_threads_scratch();
    load_rows(task, scratch);
    const bool narrow = task.row_end - task.row_begin <= kNarrowRows;
    const KernelTable& table = kernels();
    const auto type = static_cast<std::size_t>(kv_type(p_.k.dtype()));
    (narrow ? table.narrow : table.wide)[type](input_of(task), scratch);
    if (task.partial < 0) {
      finish(range_of(task), scratch);
      return;
    }
    const std::int64_t rows = range_of(task).num_rows();
    std::copy_n(scratch.o, rows * head_dim_, partials_.o.get() + task.partial * head_dim_);
    std::copy_n(scratch.row_max, rows, partials_.row_max.get() + task.partial);
    std::copy_n(scratch.row_sum, rows, partials_.row_sum.get() + task.partial);
  }

  /// Adds up the partials of split rows, in the order of the KV.
  void run_combine(const plan::Combine& combine) {
    Scratch& scratch = this_threads_scratch();
    for (std::int64_t row = 0; row < range_of(combine).num_rows(); ++row) {
      float row_max = -kInfinity;
      for (std::int64_t split = 0; split < combine.num_splits; ++split) {
        row_max = std::max(row_max, partials_.row_max[at(combine, split, row)]);
      }
      float row_sum = 0.0F;
      float* o = scratch.o + row * head_dim_;
      std::fill_n(o, head_dim_, 0.0F);
      for (std::int64_t split = 0; split < combine.num_splits; ++split) {
        const std::size_t from = at(combine, split, row);
        // A split in which this row sees nothing has the maximum -inf and adds nothing.
        if (partials_.row_max[from] == -kInfinity) continue;
        const float weight = std::exp2(partials_.row_max[from] - row_max);
        row_sum += weight * partials_.row_sum[from];
        const float* partial = partials_.o.get() + from * static_cast<std::size_t>(head_dim_);
        for (std::int64_t dim = 0; dim < head_dim_; ++dim) o[dim] += weight * partial[dim];
      }
      scratch.row_max[row] = row_max;
      scratch.row_sum[row] = row_sum;
    }
    finish(range_of(combine), scratch);
  }

  /// Rows past the last request: no values of theirs are computed, and none are left as they were.
  void clear_padding(std::int64_t num_tokens) {
    const std::int64_t bytes = head_dim_ * size_bytes(p_.out.dtype());
    for (std::int64_t token = num_tokens; token < p_.q.size(0); ++token) {
      for (std::int64_t head = 0; head < p_.q.size(1); ++head) {
        std::fill_n(row_of(p_.out, token, head), bytes, std::byte{0});
        if (p_.lse.defined()) *reinterpret_cast<float*>(row_of(p_.lse, token, head)) = -kInfinity;
      }
    }
  }

 private:
  /// The rows [begin, end) of each of some KV heads of a request, numbered head by head.
  struct RowRange {
    std::int64_t request;
    std::int64_t kv_head;
    std::int64_t num_heads;
    std::int64_t begin;
    std::int64_t end;
    std::int64_t group;

    std::int64_t num_rows() const { return num_heads * (end - begin); }
    std::int64_t kv_head_of(std::int64_t row) const { return kv_head + row / (end - begin); }
    std::int64_t token_of(std::int64_t row) const { return (begin + row % (end - begin)) / group; }
    std::int64_t q_head_of(std::int64_t row) const {
      return kv_head_of(row) * group + (begin + row % (end - begin)) % group;
    }
  };

  template <typename Item>
  RowRange range_of(const Item& item) const {
    return {item.request, item.kv_head, item.num_heads, item.row_begin, item.row_end, group_};
  }

  static Scratch& this_threads_scratch() {
    thread_local const std::unique_ptr<Scratch> scratch(new Scratch);
    return *scratch;
  }

  static std::size_t at(const plan::Combine& combine, std::int64_t split, std::int64_t row) {
    const std::int64_t rows =
        std::int64_t{combine.num_heads} * (combine.row_end - combine.row_begin);
    return static_cast<std::size_t>(combine.partial + split * rows + row);
  }

  std::int64_t query_begin(std::int64_t request) const {
    return ops::index_at(p_.cu_seqlens_q, request);
  }
  std::int64_t kv_len(std::int64_t request) const { return ops::index_at(p_.kv_lens, request); }

  /// What a row's dot products are multiplied with: the scales, and the unit that the softmax
  /// wants.
  float q_factor(const ops::QueryToken& token, std::int64_t head, std::int64_t kv_head) const {
    double factor = p_.options.scale * double(scale_of(p_.options.k_scale, kv_head));
    const Tensor& q_scale = p_.options.q_scale;
    if (q_scale.defined()) {
      factor *=
          double(q_scale.data_as<const float>()[ops::query_scale_offset(q_scale, token, head)]);
    }
    return float(p_.options.softcap > 0.0 ? factor / p_.options.softcap : factor * kLog2E);
  }

  void load_rows(const plan::Task& task, Scratch& scratch) const {
    const std::int64_t first_token = query_begin(task.request);
    const std::int64_t length = kv_len(task.request);
    const std::int64_t before = length - (query_begin(task.request + 1) - first_token);
    const plan::Mask mask{.causal = p_.options.causal, .window = p_.options.window.value_or(0)};
    const LoadRowFunction load_row = kernels().load_row[int(kv_type(p_.q.dtype()))];
    const RowRange range = range_of(task);
    for (std::int64_t row = 0; row < range.num_rows(); ++row) {
      const std::int64_t token = range.token_of(row);
      const std::int64_t head = range.q_head_of(row);
      load_row(row_of(p_.q, first_token + token, head), int(head_dim_),
               q_factor({first_token + token, task.request, token}, head, range.kv_head_of(row)),
               scratch.q + row * head_dim_);
      const plan::KvRange seen = plan::visible(mask, before + token, length);
      scratch.position[row] = static_cast<std::int32_t>(before + token);
      scratch.see_begin[row] = static_cast<std::int32_t>(seen.begin);
      scratch.see_end[row] = static_cast<std::int32_t>(seen.end);
      scratch.slope[row] = p_.options.alibi_slopes.defined()
                               ? float(double(scale_of(p_.options.alibi_slopes, head)) * kLog2E)
                               : 0.0F;
    }
  }

  KvSource source_of(const Tensor& kv, const plan::Task& task) const {
    const std::int64_t bytes = size_bytes(kv.dtype());
    const bool paged = p_.page_table.defined();
    KvSource source;
    source.token_bytes = kv.stride(-3) * bytes;
    source.head_bytes = kv.stride(-2) * bytes;
    source.base = kv.data_as<const std::byte>() + task.kv_head * source.head_bytes;
    if (paged) {
      source.page_bytes = kv.stride(0) * bytes;
    } else {
      source.base += ops::index_at(p_.cu_seqlens_k, task.request) * source.token_bytes;
    }
    return source;
  }

  TaskInput input_of(const plan::Task& task) const {
    TaskInput input;
    input.rows = task.row_end - task.row_begin;
    input.num_heads = task.num_heads;
    input.head_dim = static_cast<int>(head_dim_);
    input.k = source_of(p_.k, task);
    input.v = source_of(p_.v, task);
    if (p_.page_table.defined()) {
      input.page_ids =
          p_.page_table.data_as<const std::int32_t>() + task.request * p_.page_table.stride(0);
      input.page_id_stride = p_.page_table.stride(1);
      input.page_size = p_.k.size(1);
    }
    input.kv_begin = task.kv_begin;
    input.kv_end = task.kv_end;
    input.softcap = float(p_.options.softcap);
    input.alibi = p_.options.alibi_slopes.defined();
    return input;
  }

  /// Normalises rows, adds the sink, and writes out and lse.
  void finish(const RowRange& range, const Scratch& scratch) const {
    const std::int64_t first_token = query_begin(range.request);
    for (std::int64_t row = 0; row < range.num_rows(); ++row) {
      const std::int64_t token = first_token + range.token_of(row);
      const std::int64_t head = range.q_head_of(row);
      const bool saw_nothing = scratch.row_max[row] == -kInfinity;
      double reference = saw_nothing ? 0.0 : double(scratch.row_max[row]);
      double shrink = 1.0;  // of what was summed, where the sink is the maximum
      double sum = double(scratch.row_sum[row]);
      if (p_.options.sinks.defined()) {
        const Tensor& sinks = p_.options.sinks;
        const double sink =
            double(load_float(sinks.data(), sinks.dtype(), head * sinks.stride(0))) * kLog2E;
        if (saw_nothing || sink > reference) {
          shrink = saw_nothing ? 0.0 : std::exp2(reference - sink);
          reference = std::isinf(sink) ? reference : sink;
        }
        sum = sum * shrink + (std::isinf(sink) ? 0.0 : std::exp2(sink - reference));
      }
      const double v_scale = double(scale_of(p_.options.v_scale, range.kv_head_of(row)));
      double factor = sum == 0.0 ? 0.0 : shrink * v_scale / sum;
      if (p_.options.out_scale.defined()) factor /= double(scale_of(p_.options.out_scale, 0));
      write_row(scratch.o + row * head_dim_, float(factor), row_of(p_.out, token, head));
      if (p_.lse.defined()) {
        const double lse = sum == 0.0 ? -double(kInfinity) : (reference + std::log2(sum)) * kLn2;
        *reinterpret_cast<float*>(row_of(p_.lse, token, head)) = float(lse);
      }
    }
  }

  void write_row(const float* o, float factor, std::byte* to) const {
    if (store_row_ != nullptr) {
      store_row_(o, int(head_dim_), factor, to);
      return;
    }
    for (std::int64_t dim = 0; dim < head_dim_; ++dim) {
      store_float(to, p_.out.dtype(), dim, factor * o[dim]);
    }
  }

  const AttentionProblem& p_;
  std::int64_t head_dim_;
  std::int64_t group_;
  Partials partials_;
  StoreRowFunction store_row_;
};

/// Threads take the items one by one, in their order.
template <typename Item, typename Run>
void for_each_parallel(const Execution& execution, std::span<const Item> items, const Run& run) {
  std::atomic<std::size_t> next{0};
  const auto workers = std::min<std::size_t>(items.size(), std::size_t(num_threads(execution)));
  run_parallel(execution, static_cast<int>(workers), [&](int) {
    for (std::size_t i = next.fetch_add(1); i < items.size(); i = next.fetch_add(1)) run(items[i]);
  });
}

void count_tasks(const plan::PlanView& plan) {
  static const std::string narrow_name = kernel_name(1);
  static const std::string wide_name = kernel_name(kNarrowRows + 1);
  static Counter narrow(narrow_name.c_str());
  static Counter wide(wide_name.c_str());
  const auto few = std::count_if(plan.tasks.begin(), plan.tasks.end(), [](const plan::Task& task) {
    return task.row_end - task.row_begin <= kNarrowRows;
  });
  narrow.add(few);
  wide.add(static_cast<std::int64_t>(plan.tasks.size()) - few);
}

}  // namespace

std::string kernel_name(std::int64_t rows) {
  return std::string(rows <= kNarrowRows ? "cpu/narrow/" : "cpu/wide/") + kernels().isa;
}

void run_attention(const AttentionProblem& problem, const plan::PlanView& plan,
                   const Execution& execution) {
  Runner runner(problem, plan);
  for_each_parallel(execution, plan.tasks, [&](const plan::Task& task) { runner.run_task(task); });
  for_each_parallel(execution, plan.combines,
                    [&](const plan::Combine& combine) { runner.run_combine(combine); });
  runner.clear_padding(plan.header->num_tokens);
  count_tasks(plan);
}

}  // namespace hpcattn::cpu
