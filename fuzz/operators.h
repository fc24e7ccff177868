// SPDX-License-Identifier: Apache-2.0
// One input: the arguments of one call of one operator.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace hpcattn::fuzz {

enum class Operator : std::uint8_t {
  kPagedAttention,
  kPackedAttention,
  kMergePartials,
  kStoreKv,
  kRopeNormStoreKv,
  kMakePlan,
};
inline constexpr std::array kOperatorNames = {"paged_attention",    "packed_attention",
                                              "merge_partials",     "store_kv",
                                              "rope_norm_store_kv", "make_plan"};

enum class Outcome : std::uint8_t {
  kAccepted,
  kInvalidArgument,
  kUnsupported,
  kDeviceError,
  kFault
};
inline constexpr std::array kOutcomeNames = {"accepted", "InvalidArgument", "Unsupported",
                                             "DeviceError", "FAULT"};

struct Result {
  Operator op = Operator::kPagedAttention;
  Outcome outcome = Outcome::kFault;
  std::string message;  // of the refusal, or what is wrong
};

/// A fault: an exception that is no hpcattn::Error, a message that does not begin with the
/// operator's name, or a refused call that wrote to an output.
Result run_input(const std::uint8_t* data, std::size_t size);

}  // namespace hpcattn::fuzz
