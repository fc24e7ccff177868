// SPDX-License-Identifier: Apache-2.0
#include "src/plan/plan.h"

#include <algorithm>
#include <cstring>

#include "src/common/check.h"
#include "src/cuda/plan.h"
#include "src/ops/check_tensor.h"
#include "src/plan/split.h"

namespace hpcattn {
namespace plan {
namespace {

/// A hash that notices every changed word; not against an attacker.
class Hash {
 public:
  void add(const void* data, std::int64_t num_words) {
    const auto* words = static_cast<const std::uint32_t*>(data);
    for (std::int64_t i = 0; i < num_words; ++i) {
      state_ = (state_ ^ words[i]) * 0x9e3779b97f4a7c15ULL;
      state_ ^= state_ >> 29;
    }
  }
  void add(const Tensor& tensor) {
    for (std::int64_t i = 0; i < tensor.size(0); ++i) {
      const auto word = static_cast<std::uint32_t>(ops::index_at(tensor, i));
      add(&word, 1);
    }
  }
  void store(std::uint32_t (&out)[2]) const {
    out[0] = static_cast<std::uint32_t>(state_);
    out[1] = static_cast<std::uint32_t>(state_ >> 32);
  }

 private:
  std::uint64_t state_ = 0x243f6a8885a308d3ULL;
};

void hash_lengths(const Tensor& cu_seqlens_q, const Tensor& kv_lens, std::uint32_t (&out)[2]) {
  Hash hash;
  hash.add(cu_seqlens_q);
  hash.add(kv_lens);
  hash.store(out);
}

/// Over everything but the hash itself.
void hash_content(Header header, const std::int32_t* body, std::int64_t body_words,
                  std::uint32_t (&out)[2]) {
  std::memset(header.content_hash, 0, sizeof(header.content_hash));
  Hash hash;
  hash.add(&header, kHeaderWords);
  hash.add(body, body_words);
  hash.store(out);
}

std::int64_t body_words(const Header& header) {
  return header.num_tasks * kTaskWords + header.num_combines * kCombineWords;
}

}  // namespace

AttentionGroup group_of(const Header& header) {
  AttentionGroup group;
  group.num_q_heads = header.num_q_heads;
  group.num_kv_heads = header.num_kv_heads;
  group.head_dim = header.head_dim;
  group.page_size = header.page_size;
  group.q_dtype = static_cast<DType>(header.q_dtype);
  group.kv_dtype = static_cast<DType>(header.kv_dtype);
  group.causal = header.causal != 0;
  if (header.window > 0) group.window = header.window;
  return group;
}

Header header_of(const AttentionGroup& group, std::int64_t fixed_split) {
  Header header;
  header.num_q_heads = group.num_q_heads;
  header.num_kv_heads = group.num_kv_heads;
  header.head_dim = group.head_dim;
  header.page_size = group.page_size;
  header.q_dtype = static_cast<std::int32_t>(group.q_dtype);
  header.kv_dtype = static_cast<std::int32_t>(group.kv_dtype);
  header.causal = group.causal ? 1 : 0;
  header.window =
      static_cast<std::int32_t>(std::min<std::int64_t>(group.window.value_or(0), INT32_MAX));
  header.fixed_split = int32_split(fixed_split);
  return header;
}

PlanView view(const Tensor& plan) {
  constexpr const char* kOp = "plan";
  ops::check_shape(kOp, "plan", plan, {ops::kAnySize});
  ops::check_dtype(kOp, "plan", plan, {DType::kInt32});
  check(plan.is_contiguous(), kOp, ": plan has stride ", plan.stride(0),
        ", expected a contiguous tensor.");
  check(
      plan.device().type == DeviceType::kCpu, kOp, ": plan is on ",
      [&] { return to_string(plan.device()); }, ", expected cpu.");
  check(plan.size(0) >= kHeaderWords, kOp, ": the tensor has ", plan.size(0),
        " words and holds no plan. Fill it by make_plan.");
  const auto* words = plan.data_as<const std::int32_t>();
  const auto* header = reinterpret_cast<const Header*>(words);
  check(header->magic == kMagic && header->version == kVersion, kOp,
        ": the tensor holds no plan of this version. Fill it by make_plan.");
  const bool sized = header->num_tasks >= 0 && header->num_combines >= 0 &&
                     kHeaderWords + body_words(*header) <= plan.size(0);
  std::uint32_t hash[2] = {};
  if (sized) hash_content(*header, words + kHeaderWords, body_words(*header), hash);
  check(sized && std::memcmp(hash, header->content_hash, sizeof(hash)) == 0, kOp,
        ": the plan was changed since make_plan filled it. Make it anew.");
  PlanView result;
  result.header = header;
  words += kHeaderWords;
  result.tasks = {reinterpret_cast<const Task*>(words),
                  static_cast<std::size_t>(header->num_tasks)};
  words += header->num_tasks * kTaskWords;
  result.combines = {reinterpret_cast<const Combine*>(words),
                     static_cast<std::size_t>(header->num_combines)};
  return result;
}

PlanView view_for(const Tensor& plan, const AttentionGroup& group, const Tensor& cu_seqlens_q,
                  const Tensor& kv_lens, std::int64_t fixed_split) {
  const PlanView result = view(plan);
  const AttentionGroup made_for = group_of(*result.header);
  check(
      made_for == group, "plan: it was made for ", [&] { return to_string(made_for); },
      "; this call has ", [&] { return to_string(group); },
      ". Make a plan for each group of like layers.");
  check(fixed_split < 0 || result.header->fixed_split == int32_split(fixed_split),
        "plan: it was made with fixed_split ", result.header->fixed_split, ", this call has ",
        fixed_split, ". Give both the same.");
  check(result.header->num_requests == kv_lens.size(0), "plan: it was made for ",
        result.header->num_requests, " requests, this call has ", kv_lens.size(0), ".");
  std::uint32_t hash[2] = {};
  hash_lengths(cu_seqlens_q, kv_lens, hash);
  check(std::memcmp(hash, result.header->lengths_hash, sizeof(hash)) == 0,
        "plan: it was made for other lengths (cu_seqlens_q, kv_lens) than this call's. "
        "Make it anew in each step.");
  return result;
}

}  // namespace plan

std::string to_string(const AttentionGroup& group) {
  std::string text = message(group.num_q_heads, ":", group.num_kv_heads, " heads, head_dim ",
                             group.head_dim, ", ");
  text += group.page_size > 0 ? message("page ", group.page_size) : std::string("no pages");
  text += message(", q ", name(group.q_dtype), ", kv ", name(group.kv_dtype), ", ",
                  group.causal ? "causal" : "bidirectional");
  if (group.window) text += message(", window ", *group.window);
  return text;
}

namespace {

void check_group(const char* op, const AttentionGroup& group) {
  check(
      group.num_q_heads > 0 && group.num_kv_heads > 0 && group.head_dim > 0 && group.page_size >= 0,
      op, ": the group is ", [&] { return to_string(group); }, ", expected sizes above 0.");
  check(group.num_q_heads % group.num_kv_heads == 0, op, ": ", group.num_q_heads,
        " query heads are no ", "multiple of ", group.num_kv_heads, " KV heads.");
  check(!group.window || *group.window >= 1, op, ": window is ", group.window.value_or(0),
        ", expected 1 or more; leave it out for none.");
}

void check_fixed_split(const char* op, std::int64_t fixed_split) {
  check(fixed_split >= 0 && fixed_split % plan::kTileKv == 0, op, ": fixed_split is ", fixed_split,
        ", expected 0 or a multiple of ", plan::kTileKv, ".");
}

/// Of tensors on the CPU.
void check_lengths(const char* op, const AttentionGroup& group, const Tensor& cu_seqlens_q,
                   const Tensor& kv_lens) {
  ops::check_cu_seqlens(op, "cu_seqlens_q", cu_seqlens_q, INT32_MAX, "int32");
  for (std::int64_t i = 0; i < kv_lens.size(0); ++i) {
    check(ops::index_at(kv_lens, i) >= 0, op, ": kv_lens[", i, "] is ", ops::index_at(kv_lens, i),
          ", expected 0 or more.");
  }
  const std::int64_t num_tokens = ops::index_at(cu_seqlens_q, cu_seqlens_q.size(0) - 1);
  const int heads = group.num_q_heads / group.num_kv_heads;
  check(num_tokens * heads <= INT32_MAX, op, ": ", num_tokens, " query tokens of ", heads,
        " heads a group are over 2^31 rows. Cut the batch.");
}

std::vector<std::int32_t> read_lengths(const Tensor& tensor) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(tensor.size(0)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<std::int32_t>(ops::index_at(tensor, static_cast<std::int64_t>(i)));
  }
  return values;
}

PlanSummary summary_of(const plan::PlanView& view) {
  PlanSummary summary;
  summary.group = plan::group_of(*view.header);
  summary.num_requests = view.header->num_requests;
  summary.num_tokens = view.header->num_tokens;
  summary.num_tasks = view.header->num_tasks;
  summary.num_partials = view.header->num_partials;
  summary.num_combines = view.header->num_combines;
  for (const plan::Task& task : view.tasks) {
    summary.longest_task = std::max(summary.longest_task, plan::cost(task));
    summary.total_work += plan::cost(task);
  }
  return summary;
}

}  // namespace

std::int64_t plan_words(const AttentionGroup& group, const PlanCapacity& capacity) {
  constexpr const char* kOp = "plan_words";
  check_group(kOp, group);
  check_fixed_split(kOp, capacity.fixed_split);
  for (std::int64_t size : {capacity.max_requests, capacity.max_tokens, capacity.max_kv_len}) {
    check(size >= 0 && size <= INT32_MAX, kOp, ": max_requests ", capacity.max_requests,
          ", max_tokens ", capacity.max_tokens, ", max_kv_len ", capacity.max_kv_len,
          "; expected 0 or more of each, below 2^31.");
  }
  check(capacity.fixed_split == 0 || capacity.max_kv_len > 0, kOp,
        ": fixed_split needs max_kv_len, which is 0.");
  if (capacity.device.type == DeviceType::kCuda) {
    const plan::DeviceBound bound = cuda::plan_bound(group, capacity);
    check(bound.tasks <= plan::kMaxDeviceTasks, kOp, ": ", capacity.max_tokens, " tokens of ",
          capacity.max_requests, " requests, ", group.num_q_heads, ":", group.num_kv_heads,
          " heads and splits of ", capacity.fixed_split, " are over ", plan::kMaxDeviceTasks,
          " tasks. Plan for less, or take a longer fixed_split.");
    return bound.words;
  }
  const int workers = num_threads({.num_threads = capacity.num_workers, .parallel_for = {}});
  const std::int64_t further_splits =
      capacity.fixed_split == 0 ? 0 : capacity.max_kv_len / capacity.fixed_split;
  const double splits_of_tile = 1.0 + static_cast<double>(further_splits);
  const double rows = static_cast<double>(capacity.max_tokens) * group.num_q_heads;
  const double tiles = rows / plan::kTileRows + double(capacity.max_requests) * group.num_kv_heads;
  check(tiles * splits_of_tile <= static_cast<double>(plan::kMaxTasks), kOp, ": ",
        capacity.max_tokens, " tokens of ", capacity.max_requests, " requests, ", group.num_q_heads,
        ":", group.num_kv_heads, " heads and splits of ", capacity.fixed_split, " are over ",
        plan::kMaxTasks, " tasks. Plan for less, or take a longer fixed_split.");
  const plan::SplitBound bound = plan::split_bound(
      capacity.max_requests, capacity.max_tokens, group.num_kv_heads,
      group.num_q_heads / group.num_kv_heads, workers, capacity.fixed_split, capacity.max_kv_len);
  return plan::kHeaderWords + bound.tasks * plan::kTaskWords + bound.combines * plan::kCombineWords;
}

void make_plan(const PlanArgs& args, const Execution& execution) {
  constexpr const char* kOp = "make_plan";
  check_group(kOp, args.group);
  check_fixed_split(kOp, args.fixed_split);
  ops::check_shape(kOp, "kv_lens", args.kv_lens, {ops::kAnySize});
  ops::check_shape(kOp, "cu_seqlens_q", args.cu_seqlens_q, {args.kv_lens.size(0) + 1});
  ops::check_shape(kOp, "plan", args.plan, {ops::kAnySize});
  for (const Tensor* tensor : {&args.kv_lens, &args.cu_seqlens_q, &args.plan}) {
    const char* arg = tensor == &args.plan      ? "plan"
                      : tensor == &args.kv_lens ? "kv_lens"
                                                : "cu_seqlens_q";
    ops::check_dtype(kOp, arg, *tensor, {DType::kInt32});
    ops::check_device(kOp, arg, *tensor, args.kv_lens.device());
  }
  check(args.plan.is_contiguous(), kOp, ": plan has stride ", args.plan.stride(0),
        ", expected a contiguous tensor.");
  if (args.plan.device().type == DeviceType::kCuda) {
    if (execution.check_values) {
      check_lengths(kOp, args.group, cuda::HostCopy(args.cu_seqlens_q, execution).tensor(),
                    cuda::HostCopy(args.kv_lens, execution).tensor());
    }
    return cuda::make_plan(args, cuda::KvLens::kEach, execution);
  }
  check_lengths(kOp, args.group, args.cu_seqlens_q, args.kv_lens);

  const std::vector<std::int32_t> cu_seqlens = read_lengths(args.cu_seqlens_q);
  const std::vector<std::int32_t> kv_lens = read_lengths(args.kv_lens);
  AttentionGroup group = args.group;
  // No context is longer than int32, so neither is what a window shows.
  if (group.window) group.window = std::min<std::int64_t>(*group.window, INT32_MAX);
  const plan::SplitInput input{.cu_seqlens_q = cu_seqlens,
                               .kv_lens = kv_lens,
                               .num_kv_heads = group.num_kv_heads,
                               .group = group.num_q_heads / group.num_kv_heads,
                               .mask = {.causal = group.causal, .window = group.window.value_or(0)},
                               .num_workers = num_threads(execution),
                               .fixed_split = args.fixed_split};
  // Counted before they are made: lengths near 2^31 would fill the memory.
  const plan::SplitCount count = plan::count_split(input);
  check(count.tasks <= plan::kMaxTasks, kOp, ": this batch needs over ", plan::kMaxTasks,
        " tasks. Cut the batch, or take a longer fixed_split.");
  const std::int64_t words_needed =
      plan::kHeaderWords + count.tasks * plan::kTaskWords + count.combines * plan::kCombineWords;
  check(words_needed <= args.plan.size(0), kOp, ": plan has ", args.plan.size(0),
        " words, this batch needs ", words_needed, ". Size it by plan_words.");
  const plan::SplitResult split = plan::split(input);
  check(split.num_partial_rows <= INT32_MAX, kOp, ": ", split.num_partial_rows,
        " partial rows are over 2^31. Take a longer fixed_split.");

  plan::Header header = plan::header_of(group, args.fixed_split);
  header.num_requests = static_cast<std::int32_t>(kv_lens.size());
  header.num_tokens = cu_seqlens.back();
  header.num_tasks = static_cast<std::int32_t>(split.tasks.size());
  header.num_combines = static_cast<std::int32_t>(split.combines.size());
  header.num_partial_rows = static_cast<std::int32_t>(split.num_partial_rows);
  header.num_partials = static_cast<std::int32_t>(split.num_partials);
  plan::hash_lengths(args.cu_seqlens_q, args.kv_lens, header.lengths_hash);

  const std::int64_t body = plan::body_words(header);
  auto* words = args.plan.data_as<std::int32_t>();
  auto* tail = words + plan::kHeaderWords;
  if (!split.tasks.empty()) {
    std::memcpy(tail, split.tasks.data(), split.tasks.size() * sizeof(plan::Task));
  }
  if (!split.combines.empty()) {
    std::memcpy(tail + header.num_tasks * plan::kTaskWords, split.combines.data(),
                split.combines.size() * sizeof(plan::Combine));
  }
  plan::hash_content(header, tail, body, header.content_hash);
  std::memcpy(words, &header, sizeof(header));
}

PlanSummary summarize(const Tensor& plan) {
  if (plan.defined() && plan.device().type == DeviceType::kCuda) {
    return summary_of(cuda::PlanCopy(plan).view());
  }
  return summary_of(plan::view(plan));
}

}  // namespace hpcattn
