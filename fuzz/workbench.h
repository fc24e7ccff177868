// SPDX-License-Identifier: Apache-2.0
// Tensors for one input: right ones, now and then spoiled in rank, size, stride, dtype, device,
// pointer or values. Spoiled or not, a tensor's elements always exist: memory is what a caller must
// get right. The memory ends, or begins, at a page that no one may touch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fuzz/bytes.h"
#include "hpcattn/tensor.h"

namespace hpcattn::fuzz {

class Workbench {
 public:
  explicit Workbench(Bytes& bytes);

  Bytes& bytes() { return bytes_; }

  /// A float tensor with values of any kind, NaN too.
  Tensor floats(DType dtype, std::vector<std::int64_t> sizes);

  /// As floats(); a call that throws must leave it as it is.
  Tensor output(DType dtype, std::vector<std::int64_t> sizes);

  /// int32 (or int64) values, now and then with one that is far off.
  Tensor integers(std::vector<std::int64_t> values, std::vector<std::int64_t> sizes,
                  DType dtype = DType::kInt32);

  /// float32 scales, mostly finite and above 0.
  Tensor scales(std::vector<std::int64_t> sizes);

  /// int32 memory of exactly so many words, to be written.
  Tensor words(std::int64_t count);

  /// All arguments are made: from here on outputs are watched.
  void begin_call();

  /// Whether any output has other bytes than at begin_call().
  bool outputs_changed() const;

 private:
  struct Output {
    const std::uint8_t* memory = nullptr;
    std::size_t size = 0;
    std::uint64_t hash = 0;
  };

  /// A tensor of these sizes, spoiled perhaps, in a slot of its own.
  Tensor place(DType dtype, std::vector<std::int64_t> sizes, bool spoil);
  Tensor spoiled(DType dtype, std::vector<std::int64_t> sizes);
  Tensor lay_out(DType dtype, const std::vector<std::int64_t>& sizes,
                 const std::vector<std::int64_t>& strides);
  void fill(const Tensor& tensor);

  Bytes& bytes_;
  std::size_t next_slot_ = 0;
  std::uint64_t noise_ = 0x9e3779b97f4a7c15ULL;
  std::vector<Tensor> made_;
  std::vector<Output> outputs_;
};

}  // namespace hpcattn::fuzz
