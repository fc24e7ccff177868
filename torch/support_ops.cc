// SPDX-License-Identifier: Apache-2.0
#include "src/ops/support.h"

#include "src/common/check.h"
#include "torch/ops.h"

namespace hpcattn::torch_ops {
namespace {

std::string quoted_list(std::span<const DType> dtypes) {
  std::string json = "[";
  for (DType dtype : dtypes) json += message(json.size() > 1 ? ", \"" : "\"", name(dtype), "\"");
  json += ']';
  return json;
}

}  // namespace

std::string support() {
  std::string head_dims;
  for (std::int64_t head_dim : hpcattn::ops::supported_head_dims()) {
    head_dims += message(head_dims.empty() ? "" : ", ", head_dim);
  }
  std::string rows;
  for (const hpcattn::ops::AttentionDTypes& row : hpcattn::ops::attention_dtype_table()) {
    rows += message(rows.empty() ? "\"" : ", \"", name(row.q), "\": {\"kv\": ", quoted_list(row.kv),
                    ", \"out\": ", quoted_list(row.out), "}");
  }
  return message("{\"head_dims\": [", head_dims,
                 "], \"page_size_multiple\": ", hpcattn::ops::kPageSizeMultiple,
                 ", \"attention\": {", rows, "}}");
}

}  // namespace hpcattn::torch_ops
