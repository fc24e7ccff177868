// SPDX-License-Identifier: Apache-2.0
#include "src/cpu/reference/store.h"

#include "src/cpu/reference/numbers.h"

namespace hpcattn::reference {

double scale_of(const Tensor& scale, std::int64_t head) {
  if (!scale.defined()) return 1.0;
  return element(scale, {scale.size(0) == 1 ? 0 : head});
}

StoreResult store_kv(const StoreKvArgs& args) {
  StoreResult result;
  for (std::int64_t token = 0; token < args.k.size(0); ++token) {
    Place place;
    if (token < args.slot_mapping.size(0)) {
      const std::int64_t slot = integer(args.slot_mapping, {token});
      if (slot >= 0) {
        place.page = slot / args.k_cache.size(1);
        place.offset = slot - place.page * args.k_cache.size(1);
      }
    }
    result.places.push_back(place);
    for (std::int64_t head = 0; head < args.k.size(1); ++head) {
      for (std::int64_t d = 0; d < args.k.size(2); ++d) {
        result.k.push_back(element(args.k, {token, head, d}) / scale_of(args.k_scale, head));
        result.v.push_back(element(args.v, {token, head, d}) / scale_of(args.v_scale, head));
      }
    }
  }
  return result;
}

}  // namespace hpcattn::reference
