// SPDX-License-Identifier: Apache-2.0
// A call of rope_norm_store_kv, built from a description and a seed. All that the operator must not
// read is poison (rows of padding are NaN, their positions and slots out of range, entries of the
// page table past a request too), outputs and pool start as NaN, and all memory has guard pages.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "hpcattn/rope.h"
#include "src/cpu/reference/rope.h"
#include "src/testing/guarded_tensor.h"
#include "src/testing/kv_pool.h"
#include "src/testing/rounded_check.h"

namespace hpcattn::testkit {

enum class Places : std::uint8_t { kPageTable, kSlotMapping, kNoCache };
enum class QOutput : std::uint8_t { kOwn, kInPlace, kFp8Dynamic, kFp8Static };
enum class KvOutput : std::uint8_t { kNone, kOwn, kStored };  // kStored: the cache's dtype

struct RopeCase {
  std::string name;
  std::uint64_t seed = 1;

  std::vector<std::int32_t> q_lens = {5, 1, 0, 18};
  std::vector<std::int32_t> past_lens = {0, 40, 3, 7};  // KV tokens before the new ones
  std::int64_t num_q_heads = 4;
  std::int64_t num_kv_heads = 2;
  std::int64_t head_dim = 64;
  std::int64_t rotary_dim = 64;
  std::int64_t page_size = 16;
  std::int64_t padding_tokens = 2;

  DType dtype = DType::kBFloat16;
  DType cache_dtype = DType::kBFloat16;
  DType cos_sin_dtype = DType::kFloat32;
  DType weight_dtype = DType::kFloat32;
  DType index_dtype = DType::kInt32;

  RopeStyle style = RopeStyle::kNeox;
  QkNormPolicy policy = QkNormPolicy::kNone;
  NormScope scope = NormScope::kHead;
  double eps = 1e-6;

  bool packed = true;  // q, k and v are views of one tensor
  KvLayout layout = KvLayout::kNhd;
  Places places = Places::kPageTable;
  bool given_positions = false;
  bool mrope = false;       // positions are given then
  bool lengths = true;      // false: no cu_seqlens_q (positions and slots are given, no padding)
  double hole_share = 0.0;  // of slots, or pages, that are -1
  bool scale_per_head = false;

  QOutput q_output = QOutput::kOwn;
  KvOutput kv_output = KvOutput::kNone;
  double upper_max = 448.0;
  double deviation = 1.0;  // of q, k and v
  bool aligned = false;    // rows at multiples of 16 elements
};

/// What a call is held to.
struct RopeTolerance {
  Nearness nearness = Nearness::kRoundedOnce;
  double scale_error = 0.0;  // relative, of computed scales of q; 0: they are rounded once
};

/// Of arithmetic in float32: its scales are within 16 * 2^-24.
inline constexpr RopeTolerance kRopeInFloat32 = {Nearness::kWithinUlp, 0x1p-20};

std::string to_string(const RopeCase& c);

/// Any features together, in small shapes.
RopeCase random_rope_case(std::uint64_t seed);

class RopeBatch {
 public:
  explicit RopeBatch(const RopeCase& c);

  const RopeNormStoreKvArgs& args() const { return args_; }
  const KvPool& pool() const { return pool_; }
  const Tensor& out_q() const { return args_.out_q; }

  /// Runs the operator. "" when every output is right and nothing else was written.
  std::string run_and_check(const Execution& execution = {});

  /// The same, by whatever carries the call out; its report comes first.
  std::string run_and_check_by(const std::function<std::string(const RopeNormStoreKvArgs&)>& call,
                               const RopeTolerance& tolerance = {});

  /// All memory that a call may write, and its inputs.
  std::vector<std::vector<std::uint8_t>> bytes() const;

 private:
  void make_inputs(Rng& rng);
  void make_tokens(Rng& rng);
  void make_pool(Rng& rng);
  void make_page_table(Rng& rng);
  void make_slot_mapping(Rng& rng);
  void make_outputs(Rng& rng);
  void make_norm(Rng& rng);
  GuardedTensor indices(const std::vector<std::int64_t>& values) const;

  std::string check_q(const reference::RopeResult& want, const RopeTolerance& tolerance) const;
  std::string check_kv_output(const Tensor& got, const std::string& label, std::vector<double> want,
                              const Tensor& scale, Nearness nearness) const;
  std::vector<double> in_units_of(DType dtype, std::vector<double> values,
                                  const Tensor& scale) const;

  RopeCase case_;
  std::int64_t num_live_ = 0;
  std::int64_t num_tokens_ = 0;
  GuardedTensor qkv_, q_, k_, v_, cos_sin_, positions_, cu_seqlens_q_, kv_lens_, page_table_;
  GuardedTensor slot_mapping_, k_scale_, v_scale_, out_q_, out_k_, out_v_, q_scale_, out_q_scale_;
  GuardedTensor cleared_;
  GuardedTensor q_weight_, k_weight_;
  KvPool pool_;
  RopeNormStoreKvArgs args_;
};

}  // namespace hpcattn::testkit
