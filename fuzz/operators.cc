// SPDX-License-Identifier: Apache-2.0
#include "fuzz/operators.h"

#include <exception>

#include "fuzz/calls.h"
#include "hpcattn/error.h"

namespace hpcattn::fuzz {
namespace {

void call(Operator op, Workbench& bench) {
  switch (op) {
    case Operator::kPagedAttention: return call_paged_attention(bench);
    case Operator::kPackedAttention: return call_packed_attention(bench);
    case Operator::kMergePartials: return call_merge_partials(bench);
    case Operator::kStoreKv: return call_store_kv(bench);
    case Operator::kRopeNormStoreKv: return call_rope_norm_store_kv(bench);
    case Operator::kMakePlan: return call_make_plan(bench);
  }
}

}  // namespace

Result run_input(const std::uint8_t* data, std::size_t size) {
  Bytes bytes(data, size);
  Workbench bench(bytes);
  Result result;
  result.op = static_cast<Operator>(bytes.byte() % kOperatorNames.size());
  try {
    call(result.op, bench);
    result.outcome = Outcome::kAccepted;
    return result;
  } catch (const InvalidArgument& error) {
    result.outcome = Outcome::kInvalidArgument;
    result.message = error.what();
  } catch (const Unsupported& error) {
    result.outcome = Outcome::kUnsupported;
    result.message = error.what();
  } catch (const DeviceError& error) {
    result.outcome = Outcome::kDeviceError;
    result.message = error.what();
  } catch (const std::exception& error) {
    result.outcome = Outcome::kFault;
    result.message = std::string("not an hpcattn::Error: ") + error.what();
    return result;
  }
  if (bench.outputs_changed()) {
    result.outcome = Outcome::kFault;
    result.message = "wrote to an output, then refused: " + result.message;
  }
  return result;
}

}  // namespace hpcattn::fuzz
