// SPDX-License-Identifier: Apache-2.0
// What rope_norm_store_kv refuses: each with its text, and with nothing written.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "hpcattn/error.h"
#include "hpcattn/rope.h"
#include "src/testing/rope_case.h"

namespace hpcattn {
namespace {

using testkit::GuardedTensor;
using testkit::KvOutput;
using testkit::Places;
using testkit::QOutput;
using testkit::RopeBatch;
using testkit::RopeCase;
using Args = RopeNormStoreKvArgs;

struct Refusal {
  const char* text;
  std::function<void(Args&)> spoil;
};

template <typename E>
void expect_refused(const RopeCase& c, const std::vector<Refusal>& refusals) {
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.text);
    const RopeBatch batch(c);
    Args args = batch.args();
    refusal.spoil(args);
    const auto before = batch.bytes();
    try {
      rope_norm_store_kv(args);
      ADD_FAILURE() << "was accepted";
    } catch (const E& error) {
      EXPECT_NE(std::string(error.what()).find(refusal.text), std::string::npos) << error.what();
      EXPECT_EQ(std::string(error.what()).rfind("rope_norm_store_kv: ", 0), 0U) << error.what();
    } catch (const Error& error) {
      ADD_FAILURE() << "another kind of error: " << error.what();
    }
    EXPECT_TRUE(batch.bytes() == before) << "something was written";
  }
}

void expect_invalid(const RopeCase& c, const std::vector<Refusal>& refusals) {
  expect_refused<InvalidArgument>(c, refusals);
}

Tensor reshaped(const Tensor& tensor, std::initializer_list<std::int64_t> sizes) {
  return Tensor::contiguous(tensor.data(), tensor.dtype(), sizes, tensor.device());
}

Tensor retyped(const Tensor& tensor, DType dtype) {
  return {tensor.data(), dtype, tensor.sizes(), tensor.strides(), tensor.device()};
}

Tensor moved(const Tensor& tensor) {
  return {tensor.data(), tensor.dtype(), tensor.sizes(), tensor.strides(), {DeviceType::kCuda, 1}};
}

/// A tensor of its own for the time of the test program.
Tensor fresh(DType dtype, std::vector<std::int64_t> sizes) {
  static std::vector<GuardedTensor> kept;
  kept.emplace_back(dtype, std::move(sizes));
  return kept.back();
}

Tensor fresh_scale(double value) {
  static std::vector<GuardedTensor> kept;
  kept.push_back(GuardedTensor::of_floats({value}));
  return kept.back();
}

/// Entry [i] of a copy of an int32 tensor becomes `value`.
Tensor with_entry(const Tensor& tensor, std::int64_t i, std::int32_t value) {
  const Tensor copy = fresh(DType::kInt32, {tensor.sizes().begin(), tensor.sizes().end()});
  std::copy_n(tensor.data_as<std::int32_t>(), tensor.num_elements(), copy.data_as<std::int32_t>());
  copy.data_as<std::int32_t>()[i] = value;
  return copy;
}

// 4 requests of 5, 1, 0 and 18 new tokens after 0, 40, 3 and 7; 24 live tokens and 2 of padding.
RopeCase base() { return {}; }

TEST(RopeErrorTest, QAndKAndV) {
  expect_invalid(
      base(),
      {{"q is not given", [](Args& a) { a.q = Tensor(); }},
       {"q is bfloat16[26, 64] on cpu, expected shape [any, any, any]",
        [](Args& a) { a.q = a.q.select(1, 0); }},
       {"q has dtype float8_e4m3, expected float32 or float16 or bfloat16",
        [](Args& a) { a.q = retyped(a.q, DType::kFloat8E4M3); }},
       {"k is bfloat16[25, 2, 64] on cpu, expected shape [26, any, 64]",
        [](Args& a) { a.k = a.k.slice(0, 0, 25); }},
       {"k is bfloat16[26, 2, 32] on cpu, expected", [](Args& a) { a.k = a.k.slice(2, 0, 32); }},
       {"v is bfloat16[26, 1, 64] on cpu, expected shape [26, 2, 64]",
        [](Args& a) { a.v = a.v.slice(1, 0, 1); }},
       {"v is not given", [](Args& a) { a.v = Tensor(); }},
       {"k has dtype float16, expected bfloat16 (as q has)",
        [](Args& a) { a.k = retyped(a.k, DType::kFloat16); }},
       {"v is on cuda:1, expected cpu", [](Args& a) { a.v = moved(a.v); }},
       {"q has stride 64 in its last dim",
        [](Args& a) {
          a.q = Tensor(a.q.data(), a.q.dtype(), a.q.sizes(), std::vector<std::int64_t>{512, 1, 64});
        }},
       {"q has 3 heads and k 2, expected a multiple", [](Args& a) { a.q = a.q.slice(1, 0, 3); }},
       {"q has 4 heads and k 0, expected a multiple",
        [](Args& a) { a.k = a.v = a.k.slice(1, 0, 0); }},
       {"q is bfloat16[26, 4, 64] on cpu with a null pointer",
        [](Args& a) { a.q = Tensor(nullptr, a.q.dtype(), a.q.sizes(), a.q.strides()); }}});
  RopeCase odd = base();
  odd.head_dim = 72;
  expect_refused<Unsupported>(odd, {{"head_dim is 72, supported are 64, 80, 96", [](Args&) {}}});
}

TEST(RopeErrorTest, CosAndSin) {
  expect_invalid(
      base(),
      {{"cos_sin is not given", [](Args& a) { a.cos_sin = Tensor(); }},
       {"cos_sin has dtype int32", [](Args& a) { a.cos_sin = retyped(a.cos_sin, DType::kInt32); }},
       {"cos_sin has rotary_dim 63, expected an even number",
        [](Args& a) { a.cos_sin = a.cos_sin.slice(1, 0, 63); }},
       {"cos_sin has rotary_dim 66, over q's head_dim 64",
        [](Args& a) { a.cos_sin = fresh(DType::kFloat32, {60, 66}); }},
       {"cos_sin has stride 2 in its last dim",
        [](Args& a) { a.cos_sin = fresh(DType::kFloat32, {60, 64, 2}).select(2, 0); }},
       {"cos_sin is on cuda:1", [](Args& a) { a.cos_sin = moved(a.cos_sin); }},
       {"kv_lens gives token 5 position 40, expected 0 or more and below cos_sin's 40 rows.",
        [](Args& a) { a.cos_sin = a.cos_sin.slice(0, 0, 40); }}});
}

TEST(RopeErrorTest, Positions) {
  RopeCase c = base();
  c.given_positions = true;
  expect_invalid(
      c, {{"positions is int32[25] on cpu, expected shape [26]",
           [](Args& a) { a.positions = a.positions.slice(0, 0, 25); }},
          {"positions has dtype float32, expected int32 or int64",
           [](Args& a) { a.positions = retyped(a.positions, DType::kFloat32); }},
          {"positions is on cuda:1", [](Args& a) { a.positions = moved(a.positions); }},
          {"positions gives token 23 position -1, expected 0 or more",
           [](Args& a) { a.positions = with_entry(a.positions, 23, -1); }},
          {"positions gives token 0 position 50, expected 0 or more and below cos_sin's 50 rows.",
           [](Args& a) { a.positions = with_entry(a.positions, 0, 50); }}});
  c.mrope = true;
  expect_invalid(c,
                 {{"positions is int32[26] on cpu, expected shape [3, 26]",
                   [](Args& a) { a.positions = a.positions.select(0, 1); }},
                  {"mrope_section sums to 31, expected 32, rotary_dim / 2.",
                   [](Args& a) { a.mrope_section = {10, 10, 11}; }},
                  {"mrope_section has an entry -1, expected 0 to 32",
                   [](Args& a) { a.mrope_section = {-1, 1, 32}; }},
                  {"mrope_section has an entry 33", [](Args& a) { a.mrope_section = {33, 0, 0}; }},
                  {"mrope_section is given without positions, expected positions [3, 26].",
                   [](Args& a) { a.positions = Tensor(); }},
                  {"positions is int32[3, 26] on cpu, expected shape [26]",
                   [](Args& a) { a.mrope_section = {}; }},
                  {"positions gives token 2 position 99",
                   [](Args& a) { a.positions = with_entry(a.positions, 2 * 26 + 2, 99); }}});
}

TEST(RopeErrorTest, Lengths) {
  expect_invalid(
      base(),
      {{"cu_seqlens_q is not given, needed where positions are not",
        [](Args& a) { a.cu_seqlens_q = Tensor(); }},
       {"kv_lens is not given, needed where positions are not",
        [](Args& a) { a.kv_lens = Tensor(); }},
       {"cu_seqlens_q is empty", [](Args& a) { a.cu_seqlens_q = a.cu_seqlens_q.slice(0, 0, 0); }},
       {"cu_seqlens_q[0] is 1, expected 0",
        [](Args& a) { a.cu_seqlens_q = with_entry(a.cu_seqlens_q, 0, 1); }},
       {"cu_seqlens_q[2] is 4, below the 5 before it",
        [](Args& a) { a.cu_seqlens_q = with_entry(with_entry(a.cu_seqlens_q, 2, 4), 1, 5); }},
       {"cu_seqlens_q ends at 27, over the 26 of q's tokens",
        [](Args& a) { a.cu_seqlens_q = with_entry(a.cu_seqlens_q, 4, 27); }},
       {"cu_seqlens_q has dtype float32",
        [](Args& a) { a.cu_seqlens_q = retyped(a.cu_seqlens_q, DType::kFloat32); }},
       {"kv_lens is int32[3] on cpu, expected shape [4]",
        [](Args& a) { a.kv_lens = a.kv_lens.slice(0, 0, 3); }},
       {"kv_lens is on cuda:1", [](Args& a) { a.kv_lens = moved(a.kv_lens); }},
       {"kv_lens[2] is -3, expected 0 or more.",
        [](Args& a) { a.kv_lens = with_entry(a.kv_lens, 2, -3); }},
       {"kv_lens[3] is 17, below the request's 18 new tokens",
        [](Args& a) { a.kv_lens = with_entry(a.kv_lens, 3, 17); }},
       {"kv_lens[1] is 49, over the 48 tokens that a row of page_table holds (3 pages of 16).",
        [](Args& a) { a.kv_lens = with_entry(a.kv_lens, 1, 49); }}});
  RopeCase c = base();
  c.given_positions = true;
  expect_invalid(c, {{"cu_seqlens_q is not given, needed where slot_mapping is not",
                      [](Args& a) { a.cu_seqlens_q = Tensor(); }}});
  c.places = Places::kSlotMapping;
  c.lengths = false;
  expect_invalid(c, {{"kv_lens is given without cu_seqlens_q",
                      [](Args& a) { a.kv_lens = fresh(DType::kInt32, {1}); }},
                     {"page_table is given without cu_seqlens_q",
                      [](Args& a) { a.page_table = fresh(DType::kInt32, {1, 1}); }}});
}

TEST(RopeErrorTest, PagesAndSlots) {
  // Request 1 writes its one token to page_table[1, 2]; 10 pages are in the pool.
  expect_invalid(base(), {{"page_table is not given, needed for a cache without slot_mapping",
                           [](Args& a) { a.page_table = Tensor(); }},
                          {"page_table is int32[3, 3] on cpu, expected shape [4, any]",
                           [](Args& a) { a.page_table = a.page_table.slice(0, 0, 3); }},
                          {"page_table has dtype uint8",
                           [](Args& a) { a.page_table = retyped(a.page_table, DType::kUInt8); }},
                          {"page_table[1, 2] is 10, expected -1 or a page of k_cache's 10.",
                           [](Args& a) { a.page_table = with_entry(a.page_table, 5, 10); }},
                          {"page_table[1, 2] is -2, expected -1 or a page",
                           [](Args& a) { a.page_table = with_entry(a.page_table, 5, -2); }}});
  RopeCase c = base();
  c.places = Places::kSlotMapping;
  expect_invalid(c,
                 {{"slot_mapping is int32[25] on cpu, expected shape [26]",
                   [](Args& a) { a.slot_mapping = a.slot_mapping.slice(0, 0, 25); }},
                  {"slot_mapping has dtype bfloat16",
                   [](Args& a) { a.slot_mapping = retyped(a.slot_mapping, DType::kBFloat16); }},
                  {"slot_mapping[23] is 160, expected -1 or 0 to 159 (k_cache has 10 pages of 16).",
                   [](Args& a) { a.slot_mapping = with_entry(a.slot_mapping, 23, 160); }},
                  {"slot_mapping[0] is -7",
                   [](Args& a) { a.slot_mapping = with_entry(a.slot_mapping, 0, -7); }}});
}

TEST(RopeErrorTest, Cache) {
  expect_invalid(base(),
                 {{"v_cache is given alone", [](Args& a) { a.k_cache = Tensor(); }},
                  {"k_cache is given alone", [](Args& a) { a.v_cache = Tensor(); }},
                  {"k_cache is bfloat16[10, 16, 1, 64] on cpu, expected shape [any, any, 2, 64]",
                   [](Args& a) { a.k_cache = a.k_cache.slice(2, 0, 1); }},
                  {"v_cache has dtype float32, expected with a bfloat16 k: a cache of bfloat16",
                   [](Args& a) { a.v_cache = retyped(a.v_cache, DType::kFloat32); }},
                  {"v_cache and k_cache share memory", [](Args& a) { a.v_cache = a.k_cache; }},
                  {"k_scale is given and nothing of k_cache and out_k is float8",
                   [](Args& a) { a.k_scale = fresh_scale(1.0); }},
                  {"v_scale is given and nothing of v_cache and out_v is float8",
                   [](Args& a) { a.v_scale = fresh_scale(1.0); }}});
  RopeCase c = base();
  c.cache_dtype = DType::kFloat8E4M3;
  expect_invalid(
      c,
      {{"k_scale is not given, needed for float8 k_cache", [](Args& a) { a.k_scale = Tensor(); }},
       {"k_scale[0] is 0, expected a finite scale", [](Args& a) { a.k_scale = fresh_scale(0.0); }},
       {"v_scale[0] is nan, expected a finite scale",
        [](Args& a) { a.v_scale = fresh_scale(std::nan("")); }},
       {"v_scale is float32[3] on cpu, expected float32 [1] or [2]",
        [](Args& a) { a.v_scale = fresh(DType::kFloat32, {3}); }}});
  c.page_size = 20;
  expect_refused<Unsupported>(c, {{"page size 20, supported is a multiple of 8", [](Args&) {}}});
}

TEST(RopeErrorTest, Outputs) {
  RopeCase c = base();
  c.kv_output = KvOutput::kOwn;
  expect_invalid(
      c,
      {{"out_q is not given", [](Args& a) { a.out_q = Tensor(); }},
       {"out_q is bfloat16[25, 4, 64] on cpu", [](Args& a) { a.out_q = a.out_q.slice(0, 0, 25); }},
       {"out_q has dtype float16, expected bfloat16 (as q has) or float8_e4m3",
        [](Args& a) { a.out_q = retyped(a.out_q, DType::kFloat16); }},
       {"out_q has dtype float8_e5m2, expected",
        [](Args& a) { a.out_q = retyped(a.out_q, DType::kFloat8E5M2); }},
       {"out_q is on cuda:1", [](Args& a) { a.out_q = moved(a.out_q); }},
       {"out_q is written and has stride 0",
        [](Args& a) {
          a.out_q = Tensor(a.out_q.data(), a.out_q.dtype(), a.out_q.sizes(),
                           std::vector<std::int64_t>{0, 64, 1});
        }},
       {"out_k has dtype float8_e4m3, expected bfloat16 (as q has) or bfloat16",
        [](Args& a) { a.out_k = retyped(a.out_k, DType::kFloat8E4M3); }},
       {"out_v is bfloat16[26, 1, 64] on cpu", [](Args& a) { a.out_v = a.out_v.slice(1, 0, 1); }},
       {"out_q shares memory with q without being the same view",
        [](Args& a) { a.out_q = reshaped(a.q, {26, 4, 64}); }},
       {"out_q shares memory with k, which is read",
        [](Args& a) { a.out_q = Tensor(a.k.data(), a.q.dtype(), a.q.sizes(), a.q.strides()); }},
       {"out_k shares memory with v, which is read", [](Args& a) { a.out_k = a.v; }},
       {"out_v and out_k share memory", [](Args& a) { a.out_v = a.out_k; }},
       {"out_q shares memory with cos_sin, which is read",
        [](Args& a) { a.out_q = Tensor::contiguous(a.cos_sin.data(), a.q.dtype(), {26, 4, 64}); }},
       {"out_k and k_cache share memory",
        [](Args& a) { a.out_k = reshaped(a.k_cache, {26, 2, 64}); }},
       {"q_scale is given and out_q is bfloat16", [](Args& a) { a.q_scale = fresh_scale(1.0); }},
       {"cleared has dtype float32, expected int32",
        [](Args& a) { a.cleared = fresh(DType::kFloat32, {4}); }},
       {"cleared is int32[4, 3] on cpu with gaps between its entries",
        [](Args& a) { a.cleared = fresh(DType::kInt32, {4, 6}).slice(1, 0, 3); }},
       {"cleared is on cuda:1", [](Args& a) { a.cleared = moved(fresh(DType::kInt32, {4})); }},
       {"cleared shares memory with kv_lens, which is read",
        [](Args& a) { a.cleared = a.kv_lens; }},
       {"out_q_scale is given and out_q is bfloat16",
        [](Args& a) { a.out_q_scale = fresh(DType::kFloat32, {26, 4}); }}});
}

TEST(RopeErrorTest, Fp8Q) {
  RopeCase c = base();
  c.q_output = QOutput::kFp8Dynamic;
  const double nan = std::nan("");
  expect_invalid(
      c,
      {{"out_q is float8_e4m3 and neither q_scale nor out_q_scale is given. Give q_scale [1]",
        [](Args& a) { a.out_q_scale = Tensor(); }},
       {"out_q_scale is float32[4, 26] on cpu, expected shape [26, 4]",
        [](Args& a) { a.out_q_scale = fresh(DType::kFloat32, {4, 26}); }},
       {"out_q_scale has dtype bfloat16",
        [](Args& a) { a.out_q_scale = retyped(a.out_q_scale, DType::kBFloat16); }},
       {"out_q_scale is on cuda:1", [](Args& a) { a.out_q_scale = moved(a.out_q_scale); }},
       {"q_scale is float32[2] on cpu, expected shape [1]",
        [](Args& a) { a.q_scale = fresh(DType::kFloat32, {2}); }},
       {"q_scale[0] is -2, expected a finite scale",
        [](Args& a) { a.q_scale = fresh_scale(-2.0); }},
       {"upper_max is 0, expected above 0", [](Args& a) { a.upper_max = 0.0; }},
       {"upper_max is 449, expected above 0 and at most 448", [](Args& a) { a.upper_max = 449.0; }},
       {"upper_max is nan", [nan](Args& a) { a.upper_max = nan; }}});
}

TEST(RopeErrorTest, Norm) {
  RopeCase c = base();
  expect_invalid(
      c, {{"norm_policy is 3, expected 0 (none)", [](Args& a) { a.norm_policy = QkNormPolicy(3); }},
          {"norm_policy is -1", [](Args& a) { a.norm_policy = QkNormPolicy(-1); }},
          {"norm_scope is 2", [](Args& a) { a.norm_scope = NormScope(2); }},
          {"style is 2, expected 0 (NeoX)", [](Args& a) { a.style = RopeStyle(2); }},
          {"norm_eps is 1e-06 and norm_policy is none", [](Args& a) { a.norm_eps = 1e-6; }},
          {"k_norm_weight is given and norm_policy is none",
           [](Args& a) { a.k_norm_weight = fresh(DType::kFloat32, {64}); }}});
  c.policy = QkNormPolicy::kRopeThenNorm;
  expect_invalid(
      c,
      {{"norm_eps is not given, needed for a norm_policy", [](Args& a) { a.norm_eps = -1.0; }},
       {"norm_eps is -1e-06, expected a finite number of 0 or more.",
        [](Args& a) { a.norm_eps = -1e-6; }},
       {"norm_eps is nan", [](Args& a) { a.norm_eps = std::nan(""); }},
       {"norm_eps is inf", [](Args& a) { a.norm_eps = std::numeric_limits<double>::infinity(); }},
       {"q_norm_weight is not given", [](Args& a) { a.q_norm_weight = Tensor(); }},
       {"k_norm_weight is float32[63] on cpu, expected shape [64]",
        [](Args& a) { a.k_norm_weight = a.k_norm_weight.slice(0, 0, 63); }},
       {"q_norm_weight has dtype int32",
        [](Args& a) { a.q_norm_weight = retyped(a.q_norm_weight, DType::kInt32); }},
       {"q_norm_weight is float32[64] on cpu, expected shape [256]",
        [](Args& a) { a.norm_scope = NormScope::kToken; }},
       {"k_norm_weight is on cuda:1", [](Args& a) { a.k_norm_weight = moved(a.k_norm_weight); }}});
}

TEST(RopeErrorTest, ADeviceThatIsNotThereIsTold) {
  const RopeBatch batch(base());
  Args args = batch.args();
  for (Tensor* tensor :
       {&args.q, &args.k, &args.v, &args.cos_sin, &args.cu_seqlens_q, &args.kv_lens,
        &args.page_table, &args.k_cache, &args.v_cache, &args.out_q}) {
    *tensor = Tensor(tensor->data(), tensor->dtype(), tensor->sizes(), tensor->strides(),
                     {DeviceType::kCuda, 1000});
  }
  const auto before = batch.bytes();
  EXPECT_THROW(rope_norm_store_kv(args), DeviceError);
  EXPECT_TRUE(batch.bytes() == before) << "something was written";
}

}  // namespace
}  // namespace hpcattn
