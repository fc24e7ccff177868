// SPDX-License-Identifier: Apache-2.0
#include "src/ops/overlap.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

#include "src/common/check.h"

namespace hpcattn::ops {
namespace {

/// Bytes from the lowest to one past the highest that a tensor's entries have.
struct ByteRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// a * b bytes, of which no address space has 2^56: all sums below stay within 64 bits.
std::int64_t bytes_of(const Tensor& tensor, std::int64_t a, std::int64_t b) {
  constexpr std::int64_t kAddressSpace = std::int64_t{1} << 56;
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product) || product / kAddressSpace != 0) {
    throw InvalidArgument(message("The strides of ", to_string(tensor),
                                  " leave the address space, expected a view of memory."));
  }
  return product;
}

bool is_empty(const Tensor& tensor) {
  const auto sizes = tensor.sizes();
  return !tensor.defined() || std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
}

ByteRange range_of(const Tensor& tensor) {
  ByteRange range;
  range.begin = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(tensor.data()));
  range.end = range.begin;
  if (is_empty(tensor)) return range;
  range.end += size_bytes(tensor.dtype());
  for (int dim = 0; dim < tensor.rank(); ++dim) {
    const std::int64_t stride = bytes_of(tensor, tensor.stride(dim), size_bytes(tensor.dtype()));
    const std::int64_t reach = bytes_of(tensor, tensor.size(dim) - 1, stride);
    (reach < 0 ? range.begin : range.end) += reach;
  }
  return range;
}

bool ranges_meet(const ByteRange& a, const ByteRange& b) {
  const bool empty = a.begin == a.end || b.begin == b.end;
  return !empty && a.begin < b.end && b.begin < a.end;
}

/// stride * (low .. high): the distances that one stride can add between an entry of a and one of
/// b.
struct Term {
  std::int64_t stride;
  std::int64_t low;
  std::int64_t high;
};

/// Whether `distance` is a sum of one choice of each term.
class DistanceSearch {
 public:
  void add(std::int64_t stride, std::int64_t low, std::int64_t high) {
    if (low == 0 && high == 0) return;
    for (Term& term : terms_) {
      if (term.stride != stride) continue;
      term.low += low;
      term.high += high;
      return;
    }
    terms_.push_back({stride, low, high});
  }

  bool reaches(std::int64_t distance) {
    std::sort(terms_.begin(), terms_.end(),
              [](const Term& a, const Term& b) { return a.stride > b.stride; });
    low_.assign(terms_.size() + 1, 0);
    high_.assign(terms_.size() + 1, 0);
    for (std::size_t i = terms_.size(); i-- > 0;) {
      low_[i] = low_[i + 1] + terms_[i].low * terms_[i].stride;
      high_[i] = high_[i + 1] + terms_[i].high * terms_[i].stride;
    }
    return search(0, distance);
  }

 private:
  static std::int64_t floor_div(std::int64_t a, std::int64_t b) {
    return a / b - (a % b < 0 ? 1 : 0);
  }

  bool search(std::size_t i, std::int64_t distance) {
    if (distance < low_[i] || distance > high_[i]) return false;
    if (i == terms_.size()) return true;
    const Term& term = terms_[i];
    // The smaller strides add low_[i + 1] to high_[i + 1]; few choices of this one leave that.
    const std::int64_t first = std::max(term.low, -floor_div(high_[i + 1] - distance, term.stride));
    const std::int64_t last = std::min(term.high, floor_div(distance - low_[i + 1], term.stride));
    for (std::int64_t choice = first; choice <= last; ++choice) {
      if (--budget_ < 0) return true;
      if (search(i + 1, distance - choice * term.stride)) return true;
    }
    return false;
  }

  std::vector<Term> terms_;
  std::vector<std::int64_t> low_;
  std::vector<std::int64_t> high_;
  int budget_ = 100000;
};

void add_terms(DistanceSearch& search, const Tensor& tensor, bool negative) {
  const auto add = [&](std::int64_t stride, std::int64_t reach) {
    if (negative) {
      search.add(stride, -reach, 0);
    } else {
      search.add(stride, 0, reach);
    }
  };
  for (int dim = 0; dim < tensor.rank(); ++dim) {
    const std::int64_t stride = std::abs(tensor.stride(dim)) * size_bytes(tensor.dtype());
    if (stride != 0) add(stride, tensor.size(dim) - 1);
  }
  add(1, size_bytes(tensor.dtype()) - 1);
}

bool may_share_memory(const Tensor& a, const ByteRange& range_a, const Tensor& b,
                      const ByteRange& range_b) {
  if (!ranges_meet(range_a, range_b)) return false;
  DistanceSearch search;
  add_terms(search, a, false);
  add_terms(search, b, true);
  return search.reaches(range_b.begin - range_a.begin);
}

/// Sorted by stride, each dim steps over all of the smaller ones.
bool entries_apart(const Tensor& tensor) {
  std::vector<std::pair<std::int64_t, std::int64_t>> dims;  // stride, size
  for (int dim = 0; dim < tensor.rank(); ++dim) {
    if (tensor.size(dim) > 1) dims.emplace_back(std::abs(tensor.stride(dim)), tensor.size(dim));
  }
  std::sort(dims.begin(), dims.end());
  std::int64_t extent = 1;
  for (const auto& [stride, size] : dims) {
    if (stride < extent) return false;
    extent += stride * (size - 1);
  }
  return true;
}

}  // namespace

bool may_share_memory(const Tensor& a, const Tensor& b) {
  return may_share_memory(a, range_of(a), b, range_of(b));
}

bool same_view(const Tensor& a, const Tensor& b) {
  return a.defined() && b.defined() && a.data() == b.data() && a.dtype() == b.dtype() &&
         std::equal(a.sizes().begin(), a.sizes().end(), b.sizes().begin(), b.sizes().end()) &&
         std::equal(a.strides().begin(), a.strides().end(), b.strides().begin(), b.strides().end());
}

void check_outputs_apart(std::string_view op, std::span<const NamedTensor> outputs,
                         std::span<const NamedTensor> inputs,
                         std::span<const InPlacePair> in_place) {
  std::vector<ByteRange> output_ranges;
  for (const NamedTensor& output : outputs) {
    output_ranges.push_back(range_of(*output.tensor));
    check(
        is_empty(*output.tensor) || entries_apart(*output.tensor), op, ": ", output.name,
        " is written and its strides lay entries over each other, expected memory of its own for each.");
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      check(!may_share_memory(*outputs[i].tensor, output_ranges[i], *outputs[j].tensor,
                              output_ranges[j]),
            op, ": ", outputs[i].name, " and ", outputs[j].name,
            " share memory, expected outputs apart.");
    }
  }
  for (const NamedTensor& input : inputs) {
    const ByteRange input_range = range_of(*input.tensor);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const Tensor* output = outputs[i].tensor;
      if (!may_share_memory(*output, output_ranges[i], *input.tensor, input_range)) continue;
      const auto pair =
          std::find_if(in_place.begin(), in_place.end(), [&](const InPlacePair& candidate) {
            return candidate.output == output && candidate.input == input.tensor;
          });
      check(pair != in_place.end(), op, ": ", outputs[i].name, " shares memory with ", input.name,
            ", which is read; expected memory of its own.");
      check(
          same_view(*output, *input.tensor), op, ": ", outputs[i].name, " shares memory with ",
          input.name,
          " without being the same view of it. In place, pass the same pointer, dtype and strides.");
    }
  }
}

}  // namespace hpcattn::ops
