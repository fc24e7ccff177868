// SPDX-License-Identifier: Apache-2.0
// As kernels/ptx/wgmma.h. The lanes of a warp bring their registers; the products are made when
// their group is waited for and not before, from what registers and shared memory hold then, and
// until then the accumulators are no numbers.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <vector>

#include "numbers.h"
#include "shared_memory.h"

namespace hpcattn::emulator {

/// Fields of the descriptor of an operand in shared memory.
struct SharedOperand {
  std::uint32_t start;
  std::uint32_t leading;
  std::uint32_t stride;
  std::uint32_t line;  // bytes that are swizzled together

  explicit SharedOperand(std::uint64_t descriptor)
      : start(static_cast<std::uint32_t>(descriptor & 0x3fffU) << 4),
        leading(static_cast<std::uint32_t>(descriptor >> 16 & 0x3fffU) << 4),
        stride(static_cast<std::uint32_t>(descriptor >> 32 & 0x3fffU) << 4),
        line(descriptor >> 62 == 2 ? 64 : 128) {
    if (descriptor >> 62 != 1 && descriptor >> 62 != 2) {
      machine->fail("a matrix in shared memory that is swizzled neither by 128 nor by 64");
    }
    if ((descriptor >> 49 & 7U) != 0) machine->fail("a matrix with a base offset");
  }

  template <DType kType>
  float at(std::uint32_t address) const {
    constexpr auto kBytes = static_cast<std::size_t>(size_bytes(kType));
    const std::uint32_t swizzled = address ^ (address >> 7 & (line / 16 - 1)) << 4;
    std::uint16_t code = 0;
    std::memcpy(&code, shared_at(swizzled, kBytes, kBytes), kBytes);
    return decode_number<kType>(code);
  }
  /// Element k of a row (of the left operand) or column (of the right one).
  template <DType kType>
  float k_major(int row, int k) const {
    const auto r = static_cast<std::uint32_t>(row);
    return at<kType>(start + r / 8 * stride + r % 8 * line +
                     static_cast<std::uint32_t>(k * static_cast<int>(size_bytes(kType))));
  }
  template <DType kType>
  float mn_major(int row, int k) const {
    const auto r = static_cast<std::uint32_t>(row);
    const auto along = static_cast<std::uint32_t>(k);
    if (size_bytes(kType) != 2) machine->fail("an MN-major matrix of other than 16-bit numbers");
    if (line != 128) machine->fail("an MN-major matrix that is not swizzled by 128");
    return at<kType>(start + r / 64 * leading + r % 64 * 2 + along / 8 * stride + along % 8 * 128);
  }
};

/// The accumulators of a warp while products that add to them are under way.
struct Accumulators {
  float* of_lane[32];
  std::vector<float> values[32];

  Accumulators(float* const* lanes, int count) {
    for (int i = 0; i < 32; ++i) {
      of_lane[i] = lanes[i];
      values[i].assign(lanes[i], lanes[i] + count);
      std::fill_n(lanes[i], count, NAN);
    }
  }
  // The last product of them is done.
  ~Accumulators() {
    for (int i = 0; i < 32; ++i) std::copy(values[i].begin(), values[i].end(), of_lane[i]);
  }
  Accumulators(const Accumulators&) = delete;
  Accumulators& operator=(const Accumulators&) = delete;

  /// Those that start at `lanes`, which may be under way.
  static std::shared_ptr<Accumulators> find(float* const* lanes, int count) {
    static std::map<float*, std::weak_ptr<Accumulators>> under_way;
    std::shared_ptr<Accumulators> found = under_way[lanes[0]].lock();
    if (found == nullptr) {
      found = std::make_shared<Accumulators>(lanes, count);
      under_way[lanes[0]] = found;
    }
    return found;
  }

  /// += a [16][kDepth] b [kDepth][kN], or without what was there.
  template <int kN, int kDepth>
  void add(const float (&a)[16][kDepth], const float (&b)[kN][kDepth], bool keep) {
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < kN / 2; ++i) {
        const float* const left = a[lane / 4 + i / 2 % 2 * 8];
        const float* const right = b[i / 4 * 8 + lane % 4 * 2 + i % 2];
        double sum = 0;
        for (int k = 0; k < kDepth; ++k) sum += double{left[k]} * double{right[k]};
        float& value = values[lane][static_cast<std::size_t>(i)];
        value = static_cast<float>((keep ? double{value} : 0.0) + sum);
      }
    }
  }
};

struct WarpProduct {
  float* d;
  const std::uint32_t* a_registers;
  std::uint64_t a;
  std::uint64_t b;
  int add;
  int warp;  // of its group
};

/// The operands of a warp's product, which is 32 bytes deep.
template <DType kType, int kN>
struct Operands {
  static constexpr int kDepth = 32 / static_cast<int>(size_bytes(kType));
  static constexpr int kPerRegister = kDepth / 8;
  static constexpr int kBits = 32 / kPerRegister;
  float a[16][kDepth];
  float b[kN][kDepth];

  void read(const WarpProduct& product, const std::uint32_t* const* registers) {
    const SharedOperand right(product.b);
    const bool mn_major = product.a_registers != nullptr && !is_fp8(kType);
    for (int column = 0; column < kN; ++column) {
      for (int k = 0; k < kDepth; ++k) {
        b[column][k] =
            mn_major ? right.mn_major<kType>(column, k) : right.k_major<kType>(column, k);
      }
    }
    if (product.a_registers != nullptr) {
      for (int lane = 0; lane < 32; ++lane) {
        for (int i = 0; i < 4 * kPerRegister; ++i) {
          const int r = i / kPerRegister;
          const int within = i % kPerRegister;
          a[lane / 4 + r % 2 * 8][lane % 4 * kPerRegister + within + r / 2 * (kDepth / 2)] =
              decode_number<kType>(registers[lane][r] >> (within * kBits));
        }
      }
    } else {
      const SharedOperand left(product.a);
      for (int i = 0; i < 16 * kDepth; ++i) {
        a[i / kDepth][i % kDepth] = left.k_major<kType>(product.warp * 16 + i / kDepth, i % kDepth);
      }
    }
  }
};

template <DType kType, int kN>
void start_product(WarpProduct* const* lanes, unsigned) {
  float* d[32];
  std::array<const std::uint32_t*, 32> registers;
  for (int i = 0; i < 32; ++i) {
    d[i] = lanes[i]->d;
    registers[static_cast<std::size_t>(i)] = lanes[i]->a_registers;
    if (lanes[i]->a != lanes[0]->a || lanes[i]->b != lanes[0]->b ||
        lanes[i]->add != lanes[0]->add) {
      machine->fail("a product of a warpgroup with unlike operands in lanes 0 and %d", i);
    }
  }
  const WarpProduct product = *lanes[0];
  const std::shared_ptr<Accumulators> accumulators = Accumulators::find(d, kN / 2);
  // Operands are read at once, or when the product is waited for.
  const auto operands = std::make_shared<Operands<kType, kN>>();
  const bool early = machine->flip();
  if (early) operands->read(product, registers.data());
  machine->start_product([=] {
    if (!early) operands->read(product, registers.data());
    accumulators->add(operands->a, operands->b, product.add != 0);
  });
}

inline void meet_warp(const char* what, void (*work)(int* const*, unsigned)) {
  int nothing = 0;
  together<int>(0xffffffffU, what, nothing, work);
}

}  // namespace hpcattn::emulator

namespace hpcattn::ptx {

template <int kLineBytes>
std::uint64_t swizzled_operand(std::uint32_t shared, int stride_bytes, int leading_bytes) {
  static_assert(kLineBytes == 64 || kLineBytes == 128);
  if (shared % 16 != 0 || stride_bytes % 16 != 0 || leading_bytes % 16 != 0) {
    emulator::machine->fail("a matrix in shared memory at %u, %d, %d: no multiples of 16", shared,
                            stride_bytes, leading_bytes);
  }
  std::uint64_t descriptor = kLineBytes == 128 ? 1 : 2;
  descriptor = descriptor << 30 | static_cast<std::uint64_t>(stride_bytes) >> 4;
  descriptor = descriptor << 16 | static_cast<std::uint64_t>(leading_bytes) >> 4;
  return descriptor << 16 | std::uint64_t{shared} >> 4;
}

inline std::uint64_t further(std::uint64_t operand, int bytes) {
  const emulator::SharedOperand fields(operand);
  const std::uint32_t start = fields.start + static_cast<std::uint32_t>(bytes);
  const auto stride = static_cast<int>(fields.stride);
  const auto leading = static_cast<int>(fields.leading);
  return fields.line == 128 ? swizzled_operand<128>(start, stride, leading)
                            : swizzled_operand<64>(start, stride, leading);
}

inline void wgmma_fence() {
  emulator::meet_warp("wgmma.fence", [](int* const*, unsigned) {});
}

inline void wgmma_commit() {
  emulator::meet_warp("wgmma.commit_group",
                      [](int* const*, unsigned) { emulator::machine->close_products(); });
}

template <int kPending>
void wgmma_wait() {
  emulator::meet_warp("wgmma.wait_group", [](int* const*, unsigned) {
    emulator::machine->wait_for_products(kPending);
  });
}

template <int kCount>
void wgmma_keep_order(float*) {}

template <DType kType, int kN>
void wgmma_shared(float* d, std::uint64_t a, std::uint64_t b, int add) {
  emulator::WarpProduct mine{d, nullptr, a, b, add, static_cast<int>(threadIdx.x / 32 % 4)};
  emulator::together<emulator::WarpProduct>(0xffffffffU, "wgmma", mine,
                                            emulator::start_product<kType, kN>);
}

template <DType kType, int kN>
void wgmma_registers(float* d, const std::uint32_t (&a)[4], std::uint64_t b) {
  emulator::WarpProduct mine{d, a, 0, b, 1, static_cast<int>(threadIdx.x / 32 % 4)};
  emulator::together<emulator::WarpProduct>(0xffffffffU, "wgmma", mine,
                                            emulator::start_product<kType, kN>);
}

}  // namespace hpcattn::ptx
