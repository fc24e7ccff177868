// SPDX-License-Identifier: Apache-2.0
#include "emulator/cta.h"

#include <algorithm>
#include <bit>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <utility>

#include "emulator/device/shared_memory.h"

namespace hpcattn::emulator {
namespace {

constexpr std::size_t kStackBytes = std::size_t{192} * 1024;

std::string format_text(const char* format, std::va_list arguments) {
  char text[512];
  std::vsnprintf(text, sizeof(text), format, arguments);
  return text;
}

}  // namespace

int CtaMachine::draw(int below) {
  // xorshift64 (Marsaglia, 2003)
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  return static_cast<int>((random_ >> 33) % static_cast<std::uint64_t>(below));
}

void CtaMachine::name_thread(int index) {
  const unsigned i = static_cast<unsigned>(index);
  thread = {i % cta_size.x, i / cta_size.x % cta_size.y, i / cta_size.x / cta_size.y};
}

std::string CtaMachine::run(const Launch& launch) {
  launch_ = &launch;
  grid_size = launch.grid;
  cta_size = launch.cta;
  shared = launch.shared;
  shared_bytes = launch.shared_bytes;
  num_threads_ = static_cast<int>(cta_size.x * cta_size.y * cta_size.z);
  if (static_cast<int>(threads_.size()) < num_threads_) {
    threads_.resize(static_cast<std::size_t>(num_threads_));
    for (Thread& t : threads_) {
      if (t.fiber == nullptr) t.fiber = std::make_unique<Fiber>(kStackBytes);
    }
  }
  failure_.clear();
  for (unsigned z = 0; z < grid_size.z; ++z) {
    for (unsigned y = 0; y < grid_size.y; ++y) {
      for (unsigned x = 0; x < grid_size.x; ++x) {
        cta = {x, y, z};
        if (_setjmp(failed_) == 0) run_cta(launch);
        if (!failure_.empty()) return failure_;
      }
    }
  }
  return "";
}

void CtaMachine::begin_thread(int index) {
  Thread& t = threads_[static_cast<std::size_t>(index)];
  t.machine = this;
  t.index = index;
  t.waits_for = nullptr;
  t.ended = false;
  t.copies.clear();
  t.fiber->begin(
      [](void* argument) {
        auto& self = *static_cast<Thread*>(argument);
        self.machine->launch_->run(self.machine->launch_->params);
        self.machine->end_thread();
      },
      &t);
  runnable_.push_back(index);
}

void CtaMachine::run_cta(const Launch& launch) {
  runnable_.clear();
  polling_.clear();
  meetings_.clear();
  barriers_.clear();
  products_.clear();
  engine_copies_.clear();
  std::memset(shared, kPoison, launch.shared_bytes);
  live_ = num_threads_;
  for (int i = 0; i < num_threads_; ++i) begin_thread(i);
  while (live_ > 0) {
    if (runnable_.empty()) {
      if (poll() || copy_one()) continue;
      running_ = -1;
      fail("no thread can go on: %s", describe_waits().c_str());
    }
    const auto pick = static_cast<std::size_t>(draw(static_cast<int>(runnable_.size())));
    running_ = std::exchange(runnable_[pick], runnable_.back());
    runnable_.pop_back();
    name_thread(running_);
    threads_[static_cast<std::size_t>(running_)].fiber->enter();
    // Now and then, so that copies and those who wait for them come early too.
    if (!polling_.empty() && draw(64) == 0) {
      if (draw(2) == 0) copy_one();
      poll();
    }
  }
}

void CtaMachine::end_thread() {
  Thread& t = threads_[static_cast<std::size_t>(running_)];
  t.ended = true;
  --live_;
  open_full_barriers();
  t.fiber->leave();
}

void CtaMachine::wait(const char* what) {
  Thread& t = threads_[static_cast<std::size_t>(running_)];
  t.waits_for = what;
  t.fiber->leave();
}

void CtaMachine::release(int index) {
  threads_[static_cast<std::size_t>(index)].waits_for = nullptr;
  runnable_.push_back(index);
}

void CtaMachine::meet(unsigned mask, const char* what, void* mine, Together work) {
  const int me = running_;
  const int lane = me % 32;
  if ((mask >> lane & 1U) == 0) fail("%s with a mask, %08x, that it is not in", what, mask);
  const int warp = me / 32;
  const int in_warp = std::min(32, num_threads_ - 32 * warp);
  if (in_warp < 32 && mask >> in_warp != 0) fail("%s with lanes that there are not", what);
  Meeting& m = meetings_[32 * warp + std::countr_zero(mask)];
  if (m.here != 0 && (m.mask != mask || std::strcmp(m.what, what) != 0)) {
    fail("%s with mask %08x, where lanes of its warp have come to %s with %08x", what, mask, m.what,
         m.mask);
  }
  m.mask = mask;
  m.what = what;
  m.of_lane[lane] = mine;
  m.here |= 1U << lane;
  if (m.here != mask) return wait(what);
  Meeting done = std::exchange(m, Meeting{});
  work(done.of_lane, mask);
  for (int i = 0; i < 32; ++i) {
    if (i != lane && (mask >> i & 1U) != 0) release(32 * warp + i);
  }
}

bool CtaMachine::barrier_is_full(int id, const Barrier& barrier) const {
  const int wanted = barrier.expected == 0 && id == 0 ? live_ : barrier.expected;
  return barrier.count() > 0 && barrier.count() == wanted;
}

void CtaMachine::open_full_barriers() {
  for (auto& [id, barrier] : barriers_) {
    if (!barrier_is_full(id, barrier)) continue;
    const Barrier open = std::exchange(barrier, Barrier{});
    for (int index : open.here) {
      threads_[static_cast<std::size_t>(index)].result = open.votes;
      release(index);
    }
  }
}

CtaMachine::Barrier& CtaMachine::come_to(int id, int threads) {
  if (id < 0 || id > 15) fail("barrier %d, of 16", id);
  if (threads % 32 != 0) fail("barrier %d of %d threads, not of whole warps", id, threads);
  Barrier& b = barriers_[id];
  if (b.count() > 0 && b.expected != threads) {
    fail("barrier %d of %d threads, where some have come to one of %d", id, threads, b.expected);
  }
  b.expected = threads;
  return b;
}

int CtaMachine::barrier(int id, int threads, bool vote) {
  Barrier& b = come_to(id, threads);
  b.votes += vote ? 1 : 0;
  b.here.push_back(running_);
  const int me = running_;
  open_full_barriers();
  // It may have opened, and then is among those that can go on: it takes its turn as they do.
  const bool opened = b.here.empty();
  Thread& t = threads_[static_cast<std::size_t>(me)];
  if (!opened) t.waits_for = "a barrier of the cta";
  t.fiber->leave();
  return t.result;
}

void CtaMachine::barrier_arrive(int id, int threads) {
  ++come_to(id, threads).arrived;
  open_full_barriers();
}

void CtaMachine::wait_until(const char* what, Ready ready, const void* at, int argument) {
  if (ready(at, argument)) return;
  Thread& t = threads_[static_cast<std::size_t>(running_)];
  t.ready = ready;
  t.at = at;
  t.argument = argument;
  polling_.push_back(running_);
  wait(what);
}

bool CtaMachine::poll() {
  const std::size_t before = polling_.size();
  std::erase_if(polling_, [&](int index) {
    const Thread& t = threads_[static_cast<std::size_t>(index)];
    if (!t.ready(t.at, t.argument)) return false;
    release(index);
    return true;
  });
  return polling_.size() < before;
}

void CtaMachine::Groups::wait(int pending) {
  while (static_cast<int>(groups_.size()) - 1 > pending) {
    for (const auto& work : groups_.front()) work();
    groups_.pop_front();
  }
}

void CtaMachine::start_copy(std::function<void()> copy) {
  threads_[static_cast<std::size_t>(running_)].copies.start(std::move(copy));
}

void CtaMachine::close_group() { threads_[static_cast<std::size_t>(running_)].copies.close(); }

void CtaMachine::wait_for_groups(int pending) {
  threads_[static_cast<std::size_t>(running_)].copies.wait(pending);
}

void CtaMachine::start_product(std::function<void()> product) {
  products_[running_ / 32].start(std::move(product));
}

void CtaMachine::close_products() { products_[running_ / 32].close(); }

void CtaMachine::wait_for_products(int pending) { products_[running_ / 32].wait(pending); }

void CtaMachine::start_engine_copy(std::function<void()> copy) {
  engine_copies_.push_back(std::move(copy));
}

bool CtaMachine::copy_one() {
  if (engine_copies_.empty()) return false;
  const auto pick = static_cast<std::size_t>(draw(static_cast<int>(engine_copies_.size())));
  const std::function<void()> copy = std::exchange(engine_copies_[pick], engine_copies_.back());
  engine_copies_.pop_back();
  copy();
  return true;
}

std::string CtaMachine::describe_waits() const {
  std::map<std::string, int> waits;
  for (int i = 0; i < num_threads_; ++i) {
    const Thread& t = threads_[static_cast<std::size_t>(i)];
    if (!t.ended && t.waits_for != nullptr) ++waits[t.waits_for];
  }
  std::string text;
  for (const auto& [what, count] : waits) {
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " wait for " + what;
  }
  return text;
}

void CtaMachine::fail(const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  failure_ = format_text(format, arguments);
  va_end(arguments);
  failure_ +=
      " (cta " + std::to_string(cta.x) + "," + std::to_string(cta.y) + "," + std::to_string(cta.z);
  if (running_ >= 0) failure_ += ", thread " + std::to_string(running_);
  failure_ += ")";
  _longjmp(failed_, 1);
}

}  // namespace hpcattn::emulator
