// SPDX-License-Identifier: Apache-2.0
// Threads of a kernel, that take turns on one thread of the host. ucontext begins them; between
// them _setjmp and _longjmp switch, which unlike swapcontext ask the kernel for nothing.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>

namespace hpcattn::emulator {

class Fiber {
 public:
  explicit Fiber(std::size_t stack_bytes);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// From now on a switch to it calls body(argument), which must not return.
  void begin(void (*body)(void*), void* argument);

  /// Runs it until it calls leave(). Called by the scheduler.
  void enter();

  /// Back to where enter() was called; returns at the next enter(). Called by the fiber.
  void leave();

 private:
  static void first(unsigned high, unsigned low);

  std::size_t stack_bytes_;
  char* stack_;
  void (*body_)(void*) = nullptr;
  void* argument_ = nullptr;
  bool begun_ = false;
  ucontext_t context_{};
  jmp_buf inside_;
  jmp_buf outside_;
};

}  // namespace hpcattn::emulator
