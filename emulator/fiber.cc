// SPDX-License-Identifier: Apache-2.0
#include "emulator/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

namespace hpcattn::emulator {
namespace {

constexpr std::size_t kGuardBytes = 4096;

}  // namespace

Fiber::Fiber(std::size_t stack_bytes) : stack_bytes_(stack_bytes + kGuardBytes) {
  void* const room = mmap(nullptr, stack_bytes_, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) throw std::bad_alloc();
  stack_ = static_cast<char*>(room);
  mprotect(stack_, kGuardBytes, PROT_NONE);  // a stack that overflows is found out
}

Fiber::~Fiber() { munmap(stack_, stack_bytes_); }

void Fiber::begin(void (*body)(void*), void* argument) {
  body_ = body;
  argument_ = argument;
  begun_ = false;
}

void Fiber::first(unsigned high, unsigned low) {
  auto* const self = reinterpret_cast<Fiber*>(std::uintptr_t{high} << 32 | low);
  self->body_(self->argument_);
}

void Fiber::enter() {
  if (_setjmp(outside_) != 0) return;
  if (begun_) _longjmp(inside_, 1);
  begun_ = true;
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack_;
  context_.uc_stack.ss_size = stack_bytes_;
  context_.uc_link = nullptr;
  const auto self = reinterpret_cast<std::uintptr_t>(this);
  makecontext(&context_, reinterpret_cast<void (*)()>(&Fiber::first), 2,
              static_cast<unsigned>(self >> 32), static_cast<unsigned>(self));
  setcontext(&context_);
}

void Fiber::leave() {
  if (_setjmp(inside_) == 0) _longjmp(outside_, 1);
}

}  // namespace hpcattn::emulator
