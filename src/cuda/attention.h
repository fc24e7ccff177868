// SPDX-License-Identifier: Apache-2.0
// Attention on a GPU: which kernel a call takes, and its launch. docs/kernels/generic_attention.md
// explains the kernel.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hpcattn/plan.h"
#include "kernels/sm90/decode/config.h"
#include "kernels/sm90/prefill/config.h"
#include "src/common/attention_problem.h"
#include "src/cuda/kernel.h"

namespace hpcattn::cuda {

/// The kernels' names, as counters and people have them.
inline constexpr const char* kGenericName = "cuda/generic/attention";
inline constexpr const char* kDecodeName = "cuda/sm90/decode";
inline constexpr const char* kPrefillName = "cuda/sm90/prefill";

/// What is compiled in only where a call asks for it.
struct AttentionFeatures {
  bool softcap = false;
  bool alibi = false;
  bool unaligned_kv = false;  // rows of K or V do not start at multiples of 16 bytes
};

/// Shared memory of a cta: two of them share a multiprocessor where each still has enough.
int shared_budget(const DeviceInfo& device);
/// The same of an architecture ("sm_90a"), where no device is at hand.
int shared_budget(std::string_view arch);

/// What the choice of a kernel depends on besides the call.
struct AttentionDevice {
  std::string arch;  // "sm_90a"
  int shared_budget = 0;
  std::int64_t most_shared = 0;  // of a cta that has a multiprocessor to itself
};
AttentionDevice attention_device(const DeviceInfo& device);
AttentionDevice attention_device(std::string_view arch);

/// The variant of a group's calls. Throws Unsupported for a dtype of q that no GPU kernel takes.
AttentionSpec attention_spec(const AttentionGroup& group, const AttentionFeatures& features,
                             int shared_budget);
KernelVariant variant_of(const AttentionSpec& spec);

/// Hopper's decode kernel; decode_takes(spec).
KernelVariant variant_of(const DecodeSpec& spec);

/// Hopper's prefill kernel; prefill_takes(spec).
KernelVariant variant_of(const PrefillSpec& spec);
/// What a group's calls have of it on a device with so much shared memory a cta.
PrefillSpec prefill_spec(const AttentionGroup& group, const AttentionFeatures& features,
                         std::int64_t most_shared);
/// Packed rows of a KV head that a request has on average, rounded up; `group`: query heads of a KV
/// head. The host knows no lengths, and chooses kernels by this; each kernel serves any number.
constexpr std::int64_t rows_of_request(std::int64_t num_tokens, std::int64_t group,
                                       std::int64_t num_requests) {
  const std::int64_t requests = num_requests > 0 ? num_requests : 1;
  return (num_tokens * group + requests - 1) / requests;
}

/// Whether it takes calls whose requests have `rows` rows a KV head on average: of more rows than
/// the decode kernel has, and with HPCATTN_KERNELS=prefill of any. Not where KV is cut at fixed
/// places: a request's bits must not follow from its batch, as this choice does.
bool prefill_is_chosen(const PrefillSpec& spec, std::int64_t rows, std::int64_t fixed_split,
                       std::string_view arch);

/// Rows of a KV head that a decode kernel's pass takes, at most.
inline constexpr int kMostDecodeRows = 32;

/// Hopper's decode kernel of a group's calls whose requests have `rows` rows a KV head on average;
/// none where the generic kernel takes them: for many rows, pages and heads that the copy engine
/// does not take, other architectures than sm_90, and with HPCATTN_KERNELS=generic. `attention` is
/// the call's spec.
std::optional<DecodeSpec> decode_spec(const AttentionSpec& attention, int page_size,
                                      std::int64_t rows, std::string_view arch);

/// Every variant that a call can take on a device of this architecture: of the generic kernel, of
/// the decode kernel, and of the prefill kernel.
std::vector<KernelVariant> all_attention_variants(std::string_view arch = "sm_90a");
std::vector<KernelVariant> all_decode_variants(std::string_view arch = "sm_90a");
std::vector<KernelVariant> all_prefill_variants(std::string_view arch = "sm_90a");

/// Runs the plan that is given, or one made here. `group` is the problem's.
void run_attention(const AttentionProblem& problem, const AttentionGroup& group, const Tensor& plan,
                   std::int64_t fixed_split, const Execution& execution);

}  // namespace hpcattn::cuda
