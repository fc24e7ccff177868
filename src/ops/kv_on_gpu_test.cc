// SPDX-License-Identifier: Apache-2.0
// store_kv, rope_norm_store_kv and merge_partials on tensors of a GPU: what is checked and what is
// launched, over the stand-ins of libcuda and libnvrtc, whose device memory is the host's.
#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "hpcattn/counters.h"
#include "src/cuda/device.h"
#include "src/cuda/test_fakes.h"
#include "src/testing/merge_case.h"
#include "src/testing/rope_case.h"
#include "src/testing/store_case.h"

namespace hpcattn::cuda {
namespace {

void move_to_gpu(Tensor& tensor) {
  if (!tensor.defined()) return;
  tensor = Tensor(tensor.data(), tensor.dtype(), tensor.sizes(), tensor.strides(),
                  {DeviceType::kCuda, 0});
}

StoreKvArgs on_gpu(StoreKvArgs args) {
  for (Tensor* tensor : {&args.k, &args.v, &args.k_cache, &args.v_cache, &args.slot_mapping,
                         &args.k_scale, &args.v_scale}) {
    move_to_gpu(*tensor);
  }
  return args;
}

RopeNormStoreKvArgs on_gpu(RopeNormStoreKvArgs args) {
  for (Tensor* tensor : {&args.q,
                         &args.k,
                         &args.v,
                         &args.cos_sin,
                         &args.positions,
                         &args.cu_seqlens_q,
                         &args.kv_lens,
                         &args.page_table,
                         &args.slot_mapping,
                         &args.k_cache,
                         &args.v_cache,
                         &args.k_scale,
                         &args.v_scale,
                         &args.out_q,
                         &args.out_k,
                         &args.out_v,
                         &args.q_scale,
                         &args.out_q_scale,
                         &args.cleared,
                         &args.q_norm_weight,
                         &args.k_norm_weight}) {
    move_to_gpu(*tensor);
  }
  return args;
}

MergeArgs on_gpu(MergeArgs args) {
  for (Tensor& tensor : args.partials) move_to_gpu(tensor);
  for (Tensor& tensor : args.lses) move_to_gpu(tensor);
  move_to_gpu(args.out);
  move_to_gpu(args.lse);
  return args;
}

const Execution kChecked{.check_values = true};

/// The lines of the log that tell of launches, plain or dependent ones: "launch 3x1x1" of
/// "launch_ex 3x1x1 attribute ...".
std::string launches() {
  std::string found;
  std::istringstream log(fake().take_log());
  for (std::string line; std::getline(log, line);) {
    if (line.rfind("launch", 0) != 0) continue;
    const std::size_t grid = line.find(' ');
    found += "launch" + line.substr(grid, line.find(' ', grid + 1) - grid) + "\n";
  }
  return found;
}

TEST(KvOnGpu, StoreLaunchesAThreadToEightElements) {
  in_new_process([] {
    const TemporaryFolder folder;
    use_fakes(folder);
    testkit::StoreBatch batch({.num_tokens = 41, .num_kv_heads = 3, .head_dim = 80});
    store_kv(on_gpu(batch.args));
    EXPECT_EQ(launches(), "launch 20x1x1\n");  // 41 * 2 * 3 * 10 / 128
    store_kv(on_gpu(batch.args), kChecked);
    EXPECT_EQ(launches(), "launch 20x1x1\n");
    EXPECT_EQ(counters()["cuda/fused/store"], 2);
    EXPECT_EQ(counters()["store_kv"], 2);

    batch.args.slot_mapping.data_as<std::int32_t>()[7] = 1 << 20;
    store_kv(on_gpu(batch.args));
    EXPECT_EQ(launches(), "launch 20x1x1\n");
    const std::string text =
        thrown<InvalidArgument>([&] { store_kv(on_gpu(batch.args), kChecked); });
    expect_contains(text, "store_kv: slot_mapping[7] is 1048576, expected -1 or 0 to 55");
    EXPECT_EQ(launches(), "");

    testkit::StoreBatch empty({.num_tokens = 0});
    store_kv(on_gpu(empty.args));
    EXPECT_EQ(launches(), "");
  });
}

TEST(KvOnGpu, StoreChecksScalesWhenAsked) {
  in_new_process([] {
    const TemporaryFolder folder;
    use_fakes(folder);
    const testkit::StoreBatch batch({.cache_dtype = DType::kFloat8E4M3});
    batch.args.v_scale.data_as<float>()[1] = 0.0F;
    const std::string text =
        thrown<InvalidArgument>([&] { store_kv(on_gpu(batch.args), kChecked); });
    expect_contains(text, "store_kv: v_scale[1] is 0, expected a finite scale above 0.");
    EXPECT_EQ(launches(), "");
  });
}

TEST(KvOnGpu, RopeLaunchesWarpsTeamsOrACtaToAToken) {
  in_new_process([] {
    const TemporaryFolder folder;
    use_fakes(folder);
    testkit::RopeCase c;  // 26 tokens of 4 + 2 * 2 rows of 64
    c.aligned = true;
    const testkit::RopeBatch plain(c);
    rope_norm_store_kv(on_gpu(plain.args()));
    EXPECT_EQ(launches(), "launch 7x1x1\n");  // 4 steps of 4 tokens, 4 warps to a cta
    EXPECT_EQ(counters()["cuda/fused/rope_pairs"], 1);
    c.rotary_dim = 56;
    const testkit::RopeBatch odd(c);
    rope_norm_store_kv(on_gpu(odd.args()));
    EXPECT_EQ(launches(), "launch 13x1x1\n");  // 16 teams of 8 lanes to a cta
    c.policy = QkNormPolicy::kNormThenRope;
    c.scope = NormScope::kToken;
    const testkit::RopeBatch normed(c);
    rope_norm_store_kv(on_gpu(normed.args()), kChecked);
    EXPECT_EQ(launches(), "launch 26x1x1\n");
    EXPECT_EQ(counters()["cuda/fused/rope"], 2);

    normed.args().kv_lens.data_as<std::int32_t>()[1] = 1 << 20;
    const std::string text =
        thrown<InvalidArgument>([&] { rope_norm_store_kv(on_gpu(normed.args()), kChecked); });
    expect_contains(text, "rope_norm_store_kv: kv_lens[1] is 1048576, over the");
    EXPECT_EQ(launches(), "");
  });
}

TEST(KvOnGpu, MergeTakesAnyNumberOfPartials) {
  in_new_process([] {
    const TemporaryFolder folder;
    use_fakes(folder);
    for (std::int64_t num_partials : {1, 32, 33, 100}) {
      const testkit::MergeBatch batch({.num_partials = num_partials, .sizes = {5, 7, 64}});
      merge_partials(on_gpu(batch.args()));
      EXPECT_EQ(launches(), "launch 3x1x1\n") << num_partials;
    }
    const testkit::MergeBatch empty({.sizes = {0, 7, 64}});
    merge_partials(on_gpu(empty.args()));
    EXPECT_EQ(launches(), "");
    EXPECT_EQ(counters()["cuda/merge"], 4);
  });
}

}  // namespace
}  // namespace hpcattn::cuda
