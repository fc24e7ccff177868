// SPDX-License-Identifier: Apache-2.0
// One attention layer and a batch for it, for the backend's tests: a pool whose dead slots are NaN,
// requests with some history in the cache, new tokens, page tables whose dead entries are huge.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "hpcattn/backend.h"
#include "hpcattn/error.h"
#include "src/common/check.h"
#include "src/common/float_bits.h"
#include "src/cpu/reference/attention.h"
#include "src/cpu/reference/numbers.h"
#include "src/testing/attention_check.h"
#include "src/testing/guarded_tensor.h"
#include "src/testing/random.h"

namespace hpcattn::testkit {

/// The text of what a call throws, or "no error".
template <typename Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

struct LayerCase {
  std::vector<std::int32_t> q_lens;
  std::vector<std::int32_t> kv_lens;  // new tokens included
  std::int64_t num_q_heads = 4;
  std::int64_t num_kv_heads = 2;
  std::int64_t head_dim = 64;
  std::int64_t page_size = 16;
  DType dtype = DType::kFloat32;
  std::string kv_cache_dtype = "auto";
  KvCacheLayout layout = KvCacheLayout::kNhd;
  bool per_head_scales = false;
  std::int64_t padding = 0;  // rows past the live tokens
  std::uint64_t seed = 1;
  std::string name = "layer";
};

/// Memory by the order of dims that the backend asks for.
inline Tensor in_order(const Tensor& memory, std::vector<std::int64_t> shape,
                       const std::vector<int>& order) {
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    strides[std::size_t(order[i])] = stride;
    stride *= shape[std::size_t(order[i])];
  }
  return {memory.data(), memory.dtype(), shape, strides};
}

class TestLayer {
 public:
  explicit TestLayer(const LayerCase& c) : case_(c), rng_(c.seed) {
    const auto num_requests = std::int64_t(c.q_lens.size());
    std::vector<std::int32_t> cu{0};
    for (std::int32_t len : c.q_lens) cu.push_back(cu.back() + len);
    num_live_ = cu.back();
    num_tokens_ = num_live_ + c.padding;
    cu_seqlens_q_ = GuardedTensor::of_ints(cu);
    kv_lens_ = GuardedTensor::of_ints(c.kv_lens);

    const std::int64_t longest =
        c.kv_lens.empty() ? 0 : *std::max_element(c.kv_lens.begin(), c.kv_lens.end());
    max_pages_ = std::max<std::int64_t>(1, (longest + c.page_size - 1) / c.page_size);
    num_pages_ = num_requests * max_pages_ + 3;
    std::vector<std::int32_t> ids(static_cast<std::size_t>(num_pages_));
    std::iota(ids.begin(), ids.end(), 0);
    rng_.shuffle(ids);
    page_table_ = GuardedTensor(DType::kInt32, {num_requests, max_pages_});
    for (std::int64_t i = 0; i < num_requests; ++i) {
      for (std::int64_t j = 0; j < max_pages_; ++j) {
        const bool live = j * c.page_size < c.kv_lens[std::size_t(i)];
        table()[i * max_pages_ + j] =
            live ? ids[std::size_t(i * max_pages_ + j)] : std::numeric_limits<std::int32_t>::max();
      }
    }

    kv_dtype_ = parse_kv_cache_dtype(c.kv_cache_dtype, c.dtype).value();
    const std::vector<std::int64_t> shape = HpcAttentionBackend::kv_cache_shape(
        num_pages_, c.page_size, c.num_kv_heads, c.head_dim, c.layout);
    pool_ = GuardedTensor(kv_dtype_, shape);
    cache_ = in_order(pool_, shape, HpcAttentionBackend::kv_cache_stride_order(false, c.layout));

    query_ = random({num_tokens_, c.num_q_heads, c.head_dim});
    key_ = random({num_tokens_, c.num_kv_heads, c.head_dim});
    value_ = random({num_tokens_, c.num_kv_heads, c.head_dim});
    // Padding is garbage that must not matter.
    for (const GuardedTensor* tensor : {&query_, &key_, &value_}) {
      const Tensor rows = tensor->tensor().slice(0, num_live_, c.padding);
      for_each_index(rows, [&](const std::vector<std::int64_t>& index, std::int64_t) {
        store_float(rows.data(), c.dtype, offset_of(rows, index),
                    std::numeric_limits<float>::quiet_NaN());
      });
    }
    output_ = GuardedTensor(c.dtype, {num_tokens_, c.num_q_heads, c.head_dim});
    lse_ = GuardedTensor(DType::kFloat32, {num_tokens_, c.num_q_heads});

    std::vector<double> k_scale{0.5};
    std::vector<double> v_scale{2.0};
    if (c.per_head_scales) {
      k_scale.clear();
      v_scale.clear();
      for (std::int64_t head = 0; head < c.num_kv_heads; ++head) {
        k_scale.push_back(0.25 * double(head + 1));
        v_scale.push_back(0.03 * double(head + 1));
      }
    }
    k_scale_ = GuardedTensor::of_floats(k_scale);
    v_scale_ = GuardedTensor::of_floats(v_scale);
    scales_ = {.name = c.name, .k_scale = k_scale_, .v_scale = v_scale_};
    build_slots();
    write_history();
  }

  const LayerCase& description() const { return case_; }
  std::int64_t num_live() const { return num_live_; }
  DType kv_dtype() const { return kv_dtype_; }
  const Tensor& cache() const { return cache_; }
  KvCacheViews views() const {
    return split_kv_cache(cache_, case_.num_kv_heads, case_.head_dim, kv_dtype_);
  }
  const Tensor& query() const { return query_.tensor(); }
  const Tensor& key() const { return key_.tensor(); }
  const Tensor& value() const { return value_.tensor(); }
  const GuardedTensor& output() const { return output_; }
  const Tensor& lse() const { return lse_.tensor(); }
  const LayerScales& scales() const { return scales_; }
  const Tensor& page_table() const { return page_table_.tensor(); }
  std::int64_t slot(std::int64_t token) const { return slots_[std::size_t(token)]; }

  CommonAttnMetadata common(std::uint64_t step = 0) const {
    return {.step = step,
            .num_requests = std::int64_t(case_.q_lens.size()),
            .num_actual_tokens = num_tokens_,
            .cu_seqlens_q = cu_seqlens_q_,
            .kv_lens = kv_lens_,
            .page_table = page_table_,
            .slot_mapping = slot_mapping_};
  }

  AttentionGroup group(std::optional<std::int64_t> window = std::nullopt) const {
    return {.num_q_heads = int(case_.num_q_heads),
            .num_kv_heads = int(case_.num_kv_heads),
            .head_dim = int(case_.head_dim),
            .page_size = int(case_.page_size),
            .q_dtype = case_.dtype,
            .kv_dtype = kv_dtype_,
            .window = window};
  }

  HpcAttnMetadataBuilderOptions builder_options(
      std::optional<std::int64_t> window = std::nullopt) const {
    return {.group = group(window),
            .max_num_requests = std::int64_t(case_.q_lens.size()) + 4,
            .max_num_tokens = num_tokens_ + 64,
            .max_model_len = max_pages_ * case_.page_size};
  }

  HpcAttentionImplOptions impl_options() const {
    return {.num_heads = case_.num_q_heads,
            .head_size = case_.head_dim,
            .scale = 0.11,
            .num_kv_heads = case_.num_kv_heads,
            .kv_cache_dtype = case_.kv_cache_dtype};
  }

  HpcAttentionForwardArgs forward_args(const HpcAttnMetadata& metadata) const {
    return {.layer = &scales_,
            .query = query_,
            .key = key_,
            .value = value_,
            .kv_cache = cache_,
            .metadata = &metadata,
            .output = output_,
            .lse = lse_};
  }

  /// What the output must be, from the cache as it now is.
  AttentionOptions reference_options(const HpcAttentionImplOptions& impl) const {
    AttentionOptions options{.scale = impl.scale,
                             .window = impl.sliding_window,
                             .softcap = impl.logits_soft_cap.value_or(0.0)};
    options.sinks = impl.sinks;
    if (is_fp8(kv_dtype_)) {
      options.k_scale = k_scale_;
      options.v_scale = v_scale_;
    }
    return options;
  }

  /// "" when output and LSE are those of the float64 reference over the cache as it is now.
  std::string check(const AttentionOptions& options) const {
    return check(options, query_.tensor());
  }
  std::string check(const AttentionOptions& options, const Tensor& query,
                    const Arithmetic& arithmetic = {}) const {
    const KvCacheViews views = this->views();
    const reference::AttentionResult want =
        reference::attention(PagedAttentionArgs{.q = query,
                                                .k_cache = views.k,
                                                .v_cache = views.v,
                                                .page_table = page_table_,
                                                .cu_seqlens_q = cu_seqlens_q_,
                                                .kv_lens = kv_lens_,
                                                .out = output_,
                                                .lse = lse_,
                                                .options = options});
    return check_outputs(output_, lse_, options, want, case_.name, arithmetic);
  }

  /// What a cache slot must hold of K (of V) after this token is stored.
  double stored(bool of_v, std::int64_t token, std::int64_t head, std::int64_t dim) const {
    const Tensor& tensor = of_v ? value() : key();
    const Tensor& scale = of_v ? v_scale_.tensor() : k_scale_.tensor();
    const double x = reference::element(tensor, {token, head, dim});
    if (!is_fp8(kv_dtype_)) return x;
    const double by = reference::element(scale, {scale.size(0) == 1 ? 0 : head});
    return reference::decode(reference::encode(x / by, kv_dtype_), kv_dtype_);
  }

  /// Number of elements of the new tokens' slots that do not hold their K and V.
  std::int64_t wrong_slots() const {
    const KvCacheViews views = this->views();
    std::int64_t wrong = 0;
    for (std::int64_t token = 0; token < num_live_; ++token) {
      for (std::int64_t head = 0; head < case_.num_kv_heads; ++head) {
        for (std::int64_t dim = 0; dim < case_.head_dim; ++dim) {
          if (in_slot(views.k, slot(token), head, dim) != stored(false, token, head, dim)) ++wrong;
          if (in_slot(views.v, slot(token), head, dim) != stored(true, token, head, dim)) ++wrong;
        }
      }
    }
    return wrong;
  }

  double in_slot(const Tensor& view, std::int64_t slot, std::int64_t head, std::int64_t dim) const {
    return reference::element(view, {slot / case_.page_size, slot % case_.page_size, head, dim});
  }

  /// Bytes of the whole pool, to see that nothing was written.
  std::vector<std::uint8_t> pool_bytes() const { return pool_.bytes(); }

  void reset_output() {
    output_.poison();
    lse_.poison();
  }

  GuardedTensor random(std::vector<std::int64_t> sizes) {
    GuardedTensor tensor(case_.dtype, std::move(sizes));
    tensor.fill_normal(rng_);
    return tensor;
  }

 private:
  std::int32_t* table() { return page_table_.tensor().data_as<std::int32_t>(); }

  std::int64_t slot_of(std::int64_t request, std::int64_t position) {
    return table()[request * max_pages_ + position / case_.page_size] * case_.page_size +
           position % case_.page_size;
  }

  void build_slots() {
    for (std::size_t i = 0; i < case_.q_lens.size(); ++i) {
      for (std::int32_t t = 0; t < case_.q_lens[i]; ++t) {
        slots_.push_back(slot_of(std::int64_t(i), case_.kv_lens[i] - case_.q_lens[i] + t));
      }
    }
    for (std::int64_t i = 0; i < case_.padding; ++i) slots_.push_back(-1);
    slot_mapping_ = GuardedTensor::of_ints(slots_);
  }

  void write_history() {
    const KvCacheViews views = this->views();
    for (std::size_t i = 0; i < case_.q_lens.size(); ++i) {
      for (std::int32_t position = 0; position < case_.kv_lens[i] - case_.q_lens[i]; ++position) {
        const std::int64_t at = slot_of(std::int64_t(i), position);
        for (const Tensor& view : {views.k, views.v}) {
          for (std::int64_t head = 0; head < case_.num_kv_heads; ++head) {
            for (std::int64_t dim = 0; dim < case_.head_dim; ++dim) {
              store_float(view.data(), kv_dtype_,
                          offset_of(view, {at / case_.page_size, at % case_.page_size, head, dim}),
                          float(rng_.normal()));
            }
          }
        }
      }
    }
  }

  LayerCase case_;
  Rng rng_;
  std::int64_t num_live_ = 0;
  std::int64_t num_tokens_ = 0;
  std::int64_t max_pages_ = 0;
  std::int64_t num_pages_ = 0;
  DType kv_dtype_ = DType::kFloat32;
  std::vector<std::int64_t> slots_;
  GuardedTensor cu_seqlens_q_, kv_lens_, page_table_, slot_mapping_;
  GuardedTensor pool_, query_, key_, value_, output_, lse_, k_scale_, v_scale_;
  Tensor cache_;
  LayerScales scales_;
};

/// A layer's attention over one step, by the builder and the impl. "" when it equals the reference
/// and the new tokens' KV is in the cache.
inline std::string run_and_check(TestLayer& layer, const HpcAttentionImplOptions& options) {
  HpcAttnMetadataBuilder builder(layer.builder_options(options.sliding_window));
  const HpcAttnMetadata metadata = builder.build(0, layer.common());
  HpcAttentionImpl(options).forward(layer.forward_args(metadata));
  if (layer.wrong_slots() != 0) return "KV of new tokens is not in the cache";
  return layer.check(layer.reference_options(options));
}

}  // namespace hpcattn::testkit
