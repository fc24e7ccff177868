// SPDX-License-Identifier: Apache-2.0
// What a test can ask of the stand-in of libcuda, besides the driver's own functions. The
// environment sets, before the first call: FAKE_CUDA_DEVICES (2), FAKE_CUDA_VERSION (13000),
// FAKE_CUDA_CAPABILITY (90) and FAKE_CUDA_INIT (result of cuInit, 0).
#pragma once

struct FakeCuda {
  /// A line for each launch, load and change of context since the last call.
  const char* (*take_log)() = nullptr;
  /// From now on the driver's function `name` returns `result`.
  void (*fail)(const char* name, int result) = nullptr;
  /// Whether streams say that they are being captured.
  void (*set_capturing)(int capturing) = nullptr;
};

extern "C" void fake_cuda(FakeCuda* out);
