// SPDX-License-Identifier: Apache-2.0
#include "hpcattn/merge.h"

#include <array>
#include <string>
#include <vector>

#include "src/common/check.h"
#include "src/common/counter.h"
#include "src/cpu/merge.h"
#include "src/cuda/merge.h"
#include "src/ops/check_tensor.h"
#include "src/ops/overlap.h"

namespace hpcattn {
namespace {

constexpr std::string_view kOp = "merge_partials";

std::string numbered(std::string_view arg, std::size_t i) {
  return std::string(arg) + '[' + std::to_string(i) + ']';
}

void check_inputs(const MergeArgs& args) {
  check(!args.partials.empty(), kOp, ": no partials are given, expected at least one.");
  check(args.lses.size() == args.partials.size(), kOp, ": ", args.lses.size(), " lses and ",
        args.partials.size(), " partials are given, expected as many of each.");
  const Tensor& first = args.partials.front();
  ops::check_shape(kOp, "partials[0]", first, {ops::kAnySize, ops::kAnySize, ops::kAnySize});
  for (std::size_t i = 0; i < args.partials.size(); ++i) {
    const Tensor& partial = args.partials[i];
    const std::string arg = numbered("partials", i);
    ops::check_shape(kOp, arg, partial, {first.size(0), first.size(1), first.size(2)});
    ops::check_dtype(kOp, arg, partial, {DType::kFloat32, DType::kFloat16, DType::kBFloat16});
    check(partial.dtype() == first.dtype(), kOp, ": ", arg, " has dtype ", name(partial.dtype()),
          ", expected ", name(first.dtype()), " (as partials[0] has).");
    ops::check_device(kOp, arg, partial, first.device());
    ops::check_last_contiguous(kOp, arg, partial);

    const Tensor& lse = args.lses[i];
    const std::string lse_arg = numbered("lses", i);
    ops::check_shape(kOp, lse_arg, lse, {first.size(0), first.size(1)});
    ops::check_dtype(kOp, lse_arg, lse, {DType::kFloat32});
    ops::check_device(kOp, lse_arg, lse, first.device());
  }
}

/// out may be one of the partials and lse one of the lses: a row is read whole before it is
/// written.
void check_aliases(const MergeArgs& args) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < args.partials.size(); ++i) {
    names.push_back(numbered("partials", i));
    names.push_back(numbered("lses", i));
  }
  std::vector<ops::NamedTensor> inputs;
  std::vector<ops::InPlacePair> in_place;
  for (std::size_t i = 0; i < args.partials.size(); ++i) {
    inputs.push_back({names[2 * i], &args.partials[i]});
    inputs.push_back({names[2 * i + 1], &args.lses[i]});
    in_place.push_back({&args.out, &args.partials[i]});
    in_place.push_back({&args.lse, &args.lses[i]});
  }
  const std::array<ops::NamedTensor, 2> outputs = {{{"out", &args.out}, {"lse", &args.lse}}};
  ops::check_outputs_apart(kOp, outputs, inputs, in_place);
}

void check_outputs(const MergeArgs& args) {
  const Tensor& first = args.partials.front();
  ops::check_shape(kOp, "out", args.out, {first.size(0), first.size(1), first.size(2)});
  check(args.out.dtype() == first.dtype() || args.out.dtype() == DType::kFloat32, kOp,
        ": out has dtype ", name(args.out.dtype()), ", expected ", name(first.dtype()),
        " (as partials[0] has) or float32.");
  ops::check_device(kOp, "out", args.out, first.device());
  ops::check_last_contiguous(kOp, "out", args.out);
  ops::check_no_overlap(kOp, "out", args.out);
  if (!args.lse.defined()) return;
  ops::check_shape(kOp, "lse", args.lse, {first.size(0), first.size(1)});
  ops::check_dtype(kOp, "lse", args.lse, {DType::kFloat32});
  ops::check_device(kOp, "lse", args.lse, first.device());
  ops::check_no_overlap(kOp, "lse", args.lse);
}

}  // namespace

void merge_partials(const MergeArgs& args, const Execution& execution) {
  check_inputs(args);
  check_outputs(args);
  check_aliases(args);
  const Device device = args.partials.front().device();
  static Counter calls("merge_partials");
  calls.add();
  if (device.type == DeviceType::kCuda) return cuda::merge_partials(args, execution);
  cpu::merge_partials(args, execution);
}

}  // namespace hpcattn
