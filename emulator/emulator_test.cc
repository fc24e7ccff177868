// SPDX-License-Identifier: Apache-2.0
// The emulated GPU: instructions against what the PTX ISA says of them, and errors of kernels that
// must show.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

struct Program;
struct Module;

/// The two libraries, opened as the library under test opens the real ones.
struct Gpu {
  void* nvrtc = dlopen(HPCATTN_EMULATED_LIBNVRTC, RTLD_NOW | RTLD_LOCAL);
  void* cuda = dlopen(HPCATTN_EMULATED_LIBCUDA, RTLD_NOW | RTLD_LOCAL);

  template <typename Function>
  Function* find(void* library, const char* name) const {
    void* const found = dlsym(library, name);
    EXPECT_NE(found, nullptr) << name;
    return reinterpret_cast<Function*>(found);
  }
};

const Gpu& gpu() {
  static const Gpu instance;
  return instance;
}

/// Compiles a kernel whose one parameter is `Params`.
std::string compile(const std::string& body, std::string& image) {
  const std::string source =
      "#include \"kernels/ptx/barrier.h\"\n#include \"kernels/ptx/convert.h\"\n"
      "#include \"kernels/ptx/copy.h\"\n"
      "#include \"kernels/ptx/math.h\"\n#include \"kernels/ptx/mma.h\"\n#include \"kernels/ptx/tensor_copy.h\"\n"
      "#include \"kernels/ptx/wgmma.h\"\n"
      "namespace hpcattn {\n"
      "struct Params { float* out; const float* in; int n; TensorMap map; };\n"
      "void body(const Params& p) {\n  extern __shared__ __align__(1024) char shared[];\n"
      "  const int t = static_cast<int>(threadIdx.x);\n" +
      body +
      "}\n}\nextern \"C\" __global__ void hpcattn_kernel(const __grid_constant__ hpcattn::Params p) {\n"
      "  hpcattn::body(p);\n}\n";
  const Gpu& g = gpu();
  Program* program = nullptr;
  g.find<int(Program**, const char*, const char*, int, const char* const*, const char* const*)>(
      g.nvrtc, "nvrtcCreateProgram")(&program, source.c_str(), "", 0, nullptr, nullptr);
  const char* options[] = {"--gpu-architecture=sm_90a"};
  const int result = g.find<int(Program*, int, const char* const*)>(g.nvrtc, "nvrtcCompileProgram")(
      program, 1, options);
  std::size_t size = 0;
  g.find<int(Program*, std::size_t*)>(g.nvrtc, "nvrtcGetProgramLogSize")(program, &size);
  std::string log(size, '\0');
  g.find<int(Program*, char*)>(g.nvrtc, "nvrtcGetProgramLog")(program, log.data());
  g.find<int(Program*, std::size_t*)>(g.nvrtc, "nvrtcGetCUBINSize")(program, &size);
  image.resize(size);
  g.find<int(Program*, char*)>(g.nvrtc, "nvrtcGetCUBIN")(program, image.data());
  g.find<int(Program**)>(g.nvrtc, "nvrtcDestroyProgram")(&program);
  return result == 0 ? "" : log;
}

struct alignas(64) Map {
  std::uint64_t words[16] = {};
};
struct Params {
  float* out = nullptr;
  const float* in = nullptr;
  int n = 0;
  Map map;
};

/// Runs one cta. "" or the driver's text of the error.
std::string run(const std::string& body, Params params, unsigned threads) {
  std::string image;
  const std::string log = compile(body, image);
  if (!log.empty()) return log;
  const Gpu& g = gpu();
  Module* module = nullptr;
  EXPECT_EQ(g.find<int(Module**, const void*)>(g.cuda, "cuModuleLoadData")(&module, image.data()),
            0);
  void* arguments[] = {&params};
  const int result = g.find<int(Module*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                unsigned, void*, void**, void**)>(g.cuda, "cuLaunchKernel")(
      module, 1, 1, 1, threads, 1, 1, 16384, nullptr, arguments, nullptr);
  const char* text = "";
  g.find<int(int, const char**)>(g.cuda, "cuGetErrorString")(result, &text);
  return result == 0 ? "" : text;
}

/// Whether a kernel with an error fails with `words`; in a child, since this process would be of no
/// more use.
void expect_failure(const std::string& body, const std::string& words, unsigned threads) {
  std::vector<float> out(1024, 0.0F);
  EXPECT_EXIT(
      {
        Params params;
        params.out = out.data();
        params.in = out.data();
        const std::string text = run(body, params, threads);
        std::fprintf(stderr, "%s", text.c_str());
        std::_Exit(text.empty() ? 0 : 3);
      },
      testing::ExitedWithCode(3), words);
}

std::vector<float> result_of(const std::string& body, unsigned threads, int count,
                             const std::vector<float>& in = {}) {
  std::vector<float> out(static_cast<std::size_t>(count), -1.0F);
  Params params;
  params.out = out.data();
  params.in = in.data();
  params.n = static_cast<int>(in.size());
  EXPECT_EQ(run(body, params, threads), "");
  return out;
}

TEST(Emulator, WarpsVoteAndShuffle) {
  const std::vector<float> out = result_of(
      "  const float down = __shfl_xor_sync(0xffffffffU, float(t), 5);\n"
      "  const float up = __shfl_up_sync(0xffffffffU, float(t), 3);\n"
      "  p.out[t] = down + 100.0F * up + 10000.0F * __popc(__ballot_sync(0xffffffffU, t < 40));\n",
      64, 64);
  for (int t = 0; t < 64; ++t) {
    const int lane = t % 32;
    const int down = t / 32 * 32 + (lane ^ 5);
    const int up = lane < 3 ? t : t - 3;
    EXPECT_EQ(out[static_cast<std::size_t>(t)],
              static_cast<float>(down + 100 * up + 10000 * (t < 32 ? 32 : 8)));
  }
}

TEST(Emulator, ABarrierThatIsMissingShows) {
  const char* const exchange[] = {"  __syncthreads();\n", ""};
  int unlike[2] = {};
  for (int i = 0; i < 2; ++i) {
    const std::vector<float> out = result_of(
        "  auto* const values = reinterpret_cast<float*>(shared);\n  values[t] = float(t);\n" +
            std::string(exchange[i]) + "  p.out[t] = values[(t + 37) % 128];\n",
        128, 128);
    for (int t = 0; t < 128; ++t) {
      unlike[i] += out[static_cast<std::size_t>(t)] == static_cast<float>((t + 37) % 128) ? 0 : 1;
    }
  }
  EXPECT_EQ(unlike[0], 0);
  EXPECT_GT(unlike[1], 0);
}

TEST(Emulator, ACopyIsThereWhenItWasWaitedFor) {
  std::vector<float> in(128);
  for (int i = 0; i < 128; ++i) in[static_cast<std::size_t>(i)] = static_cast<float>(i);
  const std::string body =
      "  const auto at = ptx::shared_address(shared) + 16 * t;\n"
      "  ptx::cp_async_16(at, p.in + 4 * t, true);\n  ptx::cp_async_commit();\n"
      "  ptx::cp_async_16(at + 512, p.in + 4 * t, t < 16);\n  ptx::cp_async_commit();\n"
      "  const auto* const first = reinterpret_cast<const float*>(shared) + 4 * t;\n"
      "  p.out[t] = *first;\n  ptx::cp_async_wait<1>();\n  p.out[32 + t] = *first;\n"
      "  p.out[64 + t] = first[128];\n  ptx::cp_async_wait<0>();\n  p.out[96 + t] = first[128];\n";
  const std::vector<float> out = result_of(body, 32, 128, in);
  for (std::size_t t = 0; t < 32; ++t) {
    EXPECT_TRUE(std::isnan(out[t]));
    EXPECT_EQ(out[32 + t], static_cast<float>(4 * t));
    EXPECT_TRUE(std::isnan(out[64 + t]));
    EXPECT_EQ(out[96 + t], t < 16 ? static_cast<float>(4 * t) : 0.0F);
  }
}

/// Small whole numbers, exact in every format.
float left(int row, int k) { return static_cast<float>((row * 3 + k * 5) % 7 - 3); }
float right(int k, int column) { return static_cast<float>((k * 2 + column * 3) % 5 - 2); }

TEST(Emulator, AWarpMultipliesMatricesThatItLoadedFromSharedMemory) {
  // a [16][16] and b^T [8][16] as float16; the registers of ldmatrix are the operands of mma.
  const std::string body =
      "  auto* const a = reinterpret_cast<unsigned short*>(shared);\n"
      "  auto* const b = a + 256;\n"
      "  for (int i = t; i < 256; i += 32)\n"
      "    a[i] = ptx::pack2<DType::kFloat16>(float((i / 16 * 3 + i % 16 * 5) % 7 - 3), 0);\n"
      "  for (int i = t; i < 128; i += 32)\n"
      "    b[i] = ptx::pack2<DType::kFloat16>(float((i % 16 * 2 + i / 16 * 3) % 5 - 2), 0);\n"
      "  __syncwarp();\n  const auto base = ptx::shared_address(shared);\n"
      "  unsigned left[4], right[2];\n"
      "  ptx::ldmatrix<4, false>(left, base + t % 16 * 32 + t / 16 * 16);\n"
      "  ptx::ldmatrix<2, false>(right, base + 512 + t % 8 * 32 + t / 8 % 2 * 16);\n"
      "  float c[4] = {1, 1, 1, 1};\n"
      "  ptx::mma_m16n8k16<DType::kFloat16>(c, left, right[0], right[1]);\n"
      "  for (int e = 0; e < 4; ++e)\n"
      "    p.out[(t / 4 + e / 2 * 8) * 8 + t % 4 * 2 + e % 2] = c[e];\n";
  const std::vector<float> out = result_of(body, 32, 128);
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) {
      float want = 1.0F;
      for (int k = 0; k < 16; ++k) want += left(row, k) * right(k, column);
      EXPECT_EQ(out[static_cast<std::size_t>(row * 8 + column)], want);
    }
  }
}

TEST(Emulator, TransposedMatricesAreTransposed) {
  const std::vector<float> out = result_of(
      "  auto* const a = reinterpret_cast<unsigned short*>(shared);\n"
      "  for (int i = t; i < 128; i += 32) a[i] = i;\n  __syncwarp();\n"
      "  unsigned r[2];\n  ptx::ldmatrix<2, true>(r, ptx::shared_address(shared) + t % 16 * 16);\n"
      "  const unsigned back = ptx::transpose_8x8(r[1]);\n"
      "  p.out[2 * t] = r[0] & 0xffffU;\n  p.out[2 * t + 1] = r[0] >> 16;\n"
      "  p.out[64 + 2 * t] = back & 0xffffU;\n  p.out[65 + 2 * t] = back >> 16;\n",
      32, 128);
  for (std::size_t lane = 0; lane < 32; ++lane) {
    const std::size_t g = lane / 4;
    const std::size_t t = lane % 4;
    EXPECT_EQ(out[2 * lane], static_cast<float>(2 * t * 8 + g));
    EXPECT_EQ(out[2 * lane + 1], static_cast<float>((2 * t + 1) * 8 + g));
    EXPECT_EQ(out[64 + 2 * lane], static_cast<float>(64 + g * 8 + 2 * t));
  }
}

TEST(Emulator, AWarpgroupMultipliesSwizzledMatricesOfSharedMemoryAndRegisters) {
  // a [64][64] and b [64][64] as float16 in lines of 128 bytes: s = a b^T, and then o = s b, with b
  // as it lies.
  const std::string body =
      "  const auto base = ptx::shared_address(shared);\n"
      "  auto* const halves = reinterpret_cast<unsigned short*>(shared);\n"
      "  for (int i = t; i < 4096; i += 128) {\n"
      "    const int row = i / 64, k = i % 64;\n"
      "    const int at = row * 64 + ((k / 8) ^ (row % 8)) * 8 + k % 8;\n"
      "    halves[at] = ptx::pack2<DType::kFloat16>(float((row * 3 + k * 5) % 7 - 3), 0);\n"
      "    halves[4096 + at] = ptx::pack2<DType::kFloat16>(float((k * 2 + row * 3) % 5 - 2), 0);\n"
      "  }\n  __syncthreads();\n"
      "  float s[32], o[32] = {};\n  ptx::wgmma_fence();\n"
      "  for (int step = 0; step < 4; ++step)\n"
      "    ptx::wgmma_shared<DType::kFloat16, 64>(\n"
      "        s, ptx::swizzled_operand<128>(base + step * 32, 1024, 0),\n"
      "        ptx::swizzled_operand<128>(base + 8192 + step * 32, 1024, 0), step > 0);\n"
      "  ptx::wgmma_commit();\n  const float early = s[5];\n  ptx::wgmma_wait<0>();\n"
      "  unsigned pairs[4][4];\n"
      "  for (int i = 0; i < 16; ++i)\n"
      "    pairs[i / 4][i % 4] = ptx::pack2<DType::kFloat16>(s[2 * i], s[2 * i + 1]);\n"
      "  ptx::wgmma_fence();\n"
      "  for (int step = 0; step < 4; ++step)\n"
      "    ptx::wgmma_registers<DType::kFloat16, 64>(\n"
      "        o, pairs[step], ptx::swizzled_operand<128>(base + 8192 + step * 2048, 1024, 8192));\n"
      "  ptx::wgmma_commit();\n  ptx::wgmma_wait<0>();\n"
      "  for (int i = 0; i < 32; ++i) {\n"
      "    const int row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8;\n"
      "    const int column = i / 4 * 8 + t % 4 * 2 + i % 2;\n"
      "    p.out[row * 64 + column] = s[i];\n    p.out[4096 + row * 64 + column] = o[i];\n  }\n"
      "  p.out[8192 + t] = early;\n";
  const std::vector<float> out = result_of(body, 128, 8192 + 128);
  std::vector<float> scores(4096);
  for (int row = 0; row < 64; ++row) {
    for (int column = 0; column < 64; ++column) {
      float want = 0.0F;
      for (int k = 0; k < 64; ++k) want += left(row, k) * right(k, column);
      scores[static_cast<std::size_t>(row * 64 + column)] = want;
      EXPECT_EQ(out[static_cast<std::size_t>(row * 64 + column)], want);
    }
  }
  for (int row = 0; row < 64; ++row) {
    for (int column = 0; column < 64; ++column) {
      float want = 0.0F;
      for (int k = 0; k < 64; ++k) {
        want += scores[static_cast<std::size_t>(row * 64 + k)] * right(column, k);
      }
      EXPECT_EQ(out[static_cast<std::size_t>(4096 + row * 64 + column)], want);
    }
  }
  for (std::size_t t = 0; t < 128; ++t) EXPECT_TRUE(std::isnan(out[8192 + t]));
}

TEST(Emulator, StoredMatricesAreWhereTheirRowsAre) {
  // Lane i names the i-th 16 bytes; a lane's register m is 4 bytes of a row of matrix m.
  const std::vector<float> out = result_of(
      "  auto* const words = reinterpret_cast<unsigned*>(shared);\n"
      "  unsigned r[4];\n  for (int m = 0; m < 4; ++m) r[m] = 100 * m + t;\n"
      "  ptx::stmatrix_x4(ptx::shared_address(shared) + t * 16, r);\n  __syncwarp();\n"
      "  for (int i = t; i < 128; i += 32) p.out[i] = words[i];\n",
      32, 128);
  for (std::size_t i = 0; i < 128; ++i) {
    EXPECT_EQ(out[i], static_cast<float>(100 * (i / 32) + i % 32));
  }
}

TEST(Emulator, AWarpgroupMultipliesFp8InLinesOf64And128Bytes) {
  // a and b [64][64] of e4m3: s = a b^T with both in lines of 64 bytes, and then o = a b^T with a
  // in registers and b in lines of 128 bytes.
  const std::string body =
      "  const auto base = ptx::shared_address(shared);\n"
      "  auto* const bytes = reinterpret_cast<unsigned char*>(shared);\n"
      "  const auto a = [](int row, int k) { return float((row * 3 + k * 5) % 7 - 3); };\n"
      "  for (int i = t; i < 4096; i += 128) {\n"
      "    const int row = i / 64, k = i % 64;\n"
      "    const int narrow = row * 64 + ((k / 16) ^ (row / 2 % 4)) * 16 + k % 16;\n"
      "    const int wide = row * 128 + ((k / 16) ^ (row % 8)) * 16 + k % 16;\n"
      "    const float b = float((k * 2 + row * 3) % 5 - 2);\n"
      "    bytes[narrow] = ptx::pack2_fp8<DType::kFloat8E4M3>(a(row, k), 0);\n"
      "    bytes[4096 + narrow] = bytes[8192 + wide] = ptx::pack2_fp8<DType::kFloat8E4M3>(b, 0);\n"
      "  }\n  __syncthreads();\n"
      "  float s[32], o[32] = {};\n  ptx::wgmma_fence();\n"
      "  for (int step = 0; step < 2; ++step) {\n"
      "    ptx::wgmma_shared<DType::kFloat8E4M3, 64>(\n"
      "        s, ptx::swizzled_operand<64>(base + step * 32, 512, 0),\n"
      "        ptx::swizzled_operand<64>(base + 4096 + step * 32, 512, 0), step > 0);\n"
      "  }\n"
      "  unsigned codes[2][4];\n"
      "  for (int step = 0; step < 2; ++step) {\n    for (int r = 0; r < 4; ++r) {\n"
      "      const int row = t / 32 * 16 + t % 32 / 4 + r % 2 * 8;\n"
      "      const int k = step * 32 + r / 2 * 16 + t % 4 * 4;\n"
      "      codes[step][r] = ptx::pack4_fp8<DType::kFloat8E4M3>(a(row, k), a(row, k + 1),\n"
      "                                                          a(row, k + 2), a(row, k + 3));\n"
      "    }\n"
      "    ptx::wgmma_registers<DType::kFloat8E4M3, 64>(\n"
      "        o, codes[step], ptx::swizzled_operand<128>(base + 8192 + step * 32, 1024, 0));\n"
      "  }\n"
      "  ptx::wgmma_commit();\n  ptx::wgmma_wait<0>();\n"
      "  for (int i = 0; i < 32; ++i) {\n"
      "    const int row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8;\n"
      "    const int column = i / 4 * 8 + t % 4 * 2 + i % 2;\n"
      "    p.out[row * 64 + column] = s[i];\n    p.out[4096 + row * 64 + column] = o[i];\n  }\n";
  const std::vector<float> out = result_of(body, 128, 8192);
  for (int row = 0; row < 64; ++row) {
    for (int column = 0; column < 64; ++column) {
      float want = 0.0F;
      for (int k = 0; k < 64; ++k) want += left(row, k) * right(k, column);
      EXPECT_EQ(out[static_cast<std::size_t>(row * 64 + column)], want);
      EXPECT_EQ(out[static_cast<std::size_t>(4096 + row * 64 + column)], want);
    }
  }
}

TEST(Emulator, WhoOnlyArrivesAtABarrierDoesNotWait) {
  // Two warps by turns, each of which lets the other go on.
  const std::vector<float> out = result_of(
      "  const int warp = t / 32;\n  auto* const order = reinterpret_cast<int*>(shared);\n"
      "  if (t == 0) *order = 0;\n  __syncthreads();\n"
      "  if (warp == 1) ptx::barrier_arrive(1, 64);\n"
      "  for (int i = 0; i < 4; ++i) {\n    ptx::barrier_sync(1 + warp, 64);\n"
      "    if (t % 32 == 0) p.out[2 * i + warp] = (*order)++;\n    __syncwarp();\n"
      "    ptx::barrier_arrive(2 - warp, 64);\n  }\n",
      64, 8);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(out[i], static_cast<float>(i));
}

/// A tensor [pages][tokens][64] of 2-byte elements, boxes of 16 tokens of one page.
Params mapped(std::vector<std::uint16_t>& elements, std::vector<float>& out, int tokens) {
  Params params;
  params.out = out.data();
  const std::uint64_t sizes[] = {64, static_cast<std::uint64_t>(tokens), 1, 1, 2};
  const std::uint64_t strides[] = {128, 128, 128, static_cast<std::uint64_t>(tokens) * 128};
  const std::uint32_t box[] = {64, 16, 1, 1, 1};
  const std::uint32_t steps[] = {1, 1, 1, 1, 1};
  const int made =
      gpu()
          .find<int(void*, int, unsigned, void*, const std::uint64_t*, const std::uint64_t*,
                    const std::uint32_t*, const std::uint32_t*, int, int, int, int)>(
              gpu().cuda, "cuTensorMapEncodeTiled")(&params.map, 1, 5, elements.data(), sizes,
                                                    strides, box, steps, 0, 3, 0, 0);
  EXPECT_EQ(made, 0);
  return params;
}

constexpr const char* kBoxes =
    "  const auto base = ptx::shared_address(shared);\n  const auto barrier = base + 8192;\n"
    "  if (t == 0) {\n    ptx::mbarrier_init(barrier, 1);\n"
    "    ptx::mbarrier_arrive_expect(barrier, 2048);\n"
    "    ptx::tensor_copy_5d(base, p.map, barrier, 0, 8, 0, 0, 1);\n  }\n  __syncwarp();\n";

TEST(Emulator, TheEngineCopiesBoxesSwizzled) {
  constexpr int kTokens = 20;
  std::vector<std::uint16_t> elements(2 * kTokens * 64 + 8);
  for (std::size_t i = 0; i < elements.size(); ++i) elements[i] = static_cast<std::uint16_t>(i);
  std::vector<float> out(1024, -1.0F);
  Params params = mapped(elements, out, kTokens);
  EXPECT_EQ(run(std::string(kBoxes) +
                    "  ptx::mbarrier_wait(barrier, 0);\n"
                    "  for (int i = t; i < 1024; i += 32)\n"
                    "    p.out[i] = reinterpret_cast<const unsigned short*>(shared)[i];\n",
                params, 32),
            "");
  for (int token = 0; token < 16; ++token) {
    for (int i = 0; i < 64; ++i) {
      // 16-byte units of a line of 128 bytes change places by the line's number.
      const int at = token * 64 + ((i / 8) ^ (token % 8)) * 8 + i % 8;
      const int want = token + 8 < kTokens ? (kTokens + 8 + token) * 64 + i : 0;
      EXPECT_EQ(out[static_cast<std::size_t>(at)], static_cast<float>(want % 65536));
    }
  }
}

TEST(Emulator, WhatTheEngineHasNotBroughtIsNoNumber) {
  std::vector<std::uint16_t> elements(40 * 64, 7);
  std::vector<float> out(32, -1.0F);
  Params params = mapped(elements, out, 20);
  EXPECT_EQ(run(std::string(kBoxes) +
                    "  p.out[t] = reinterpret_cast<const unsigned short*>(shared)[t];\n",
                params, 32),
            "");
  for (const float value : out) EXPECT_EQ(value, 65535.0F);
}

TEST(Emulator, ThreadsThatWaitForEverAreAnError) {
  expect_failure("  if (t < 32) ptx::barrier_sync(1, 64);\n", "no thread can go on: 32 wait", 64);
  expect_failure(
      "  const auto barrier = ptx::shared_address(shared);\n"
      "  if (t == 0) ptx::mbarrier_init(barrier, 33);\n  __syncwarp();\n"
      "  ptx::mbarrier_arrive(barrier);\n  ptx::mbarrier_wait(barrier, 0);\n",
      "32 wait for a memory barrier", 32);
}

TEST(Emulator, WhatAGpuFaultsOnIsAnError) {
  expect_failure(
      "  unsigned r[2];\n"
      "  ptx::ldmatrix<2, false>(r, ptx::shared_address(shared) + 8 * t);\n",
      "no multiple of 16", 32);
  expect_failure("  ptx::cp_async_16(ptx::shared_address(shared) + 16384, p.in, true);\n",
                 "16 bytes at 16384 of shared memory, which has 16384", 32);
  expect_failure("  ptx::mbarrier_arrive(ptx::shared_address(shared));\n", "no memory barrier", 32);
  expect_failure("  if (t < 16) __syncwarp(); else __any_sync(0xffffffffU, true);\n",
                 "have come to", 32);
}

TEST(Emulator, WhatDoesNotCompileSaysWhy) {
  std::string image;
  EXPECT_NE(compile("  there_is_no_such_function();\n", image).find("there_is_no_such_function"),
            std::string::npos);
}

}  // namespace
