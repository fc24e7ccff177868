// SPDX-License-Identifier: Apache-2.0
// A tensor in guarded memory, with any strides. Its elements start as NaN ("unwritten") and the
// gaps between them, where the strides leave some, hold a pattern.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "hpcattn/tensor.h"
#include "src/testing/guarded_buffer.h"
#include "src/testing/random.h"

namespace hpcattn::testkit {

class GuardedTensor {
 public:
  GuardedTensor() = default;

  /// Row-major; `row_gap` elements are left out after each entry of the second last dim.
  GuardedTensor(DType dtype, std::vector<std::int64_t> sizes, GuardSide side = GuardSide::kAfter,
                std::int64_t row_gap = 0);

  static GuardedTensor of_ints(const std::vector<std::int32_t>& values,
                               GuardSide side = GuardSide::kAfter);
  static GuardedTensor of_ints(const std::vector<std::int64_t>& values,
                               GuardSide side = GuardSide::kAfter);
  static GuardedTensor of_floats(const std::vector<double>& values, DType dtype = DType::kFloat32,
                                 GuardSide side = GuardSide::kAfter);

  const Tensor& tensor() const { return tensor_; }
  operator const Tensor&() const { return tensor_; }  // NOLINT: it stands for its tensor

  /// Normal numbers times `deviation`, rounded to the dtype.
  void fill_normal(Rng& rng, double deviation = 1.0);

  /// Every element NaN, gaps the pattern: as it began.
  void poison();

  /// Neither the gaps nor the memory around it were written.
  bool surroundings_intact() const;

  /// All memory, gaps included, to see that a refused call wrote nothing.
  std::vector<std::uint8_t> bytes() const { return buffer_.bytes(); }
  const GuardedBuffer& buffer() const { return buffer_; }

 private:
  std::vector<bool> covered() const;

  GuardedBuffer buffer_;
  Tensor tensor_;
};

/// Calls body(index, number) for each index of a tensor, in row-major order.
template <typename Body>
void for_each_index(const Tensor& tensor, Body body) {
  std::vector<std::int64_t> index(static_cast<std::size_t>(tensor.rank()), 0);
  const std::int64_t count = tensor.num_elements();
  for (std::int64_t number = 0; number < count; ++number) {
    body(index, number);
    for (std::size_t dim = index.size(); dim-- > 0;) {
      if (++index[dim] < tensor.size(static_cast<int>(dim))) break;
      index[dim] = 0;
    }
  }
}

/// Element offset of an index.
std::int64_t offset_of(const Tensor& tensor, const std::vector<std::int64_t>& index);

}  // namespace hpcattn::testkit
