#include "scheduler.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <utility>

namespace metal_host {

namespace {

constexpr uint32_t kMemThreadgroup = 2; // of metal::mem_flags

} // namespace

std::atomic<uint64_t> barrier_count{0}, simd_operation_count{0}, group_count{0};

void Shared::fail(const std::string& text) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (!failed.exchange(true)) {
    failure = text;
  }
}

Worker*& Worker::current() {
  static thread_local Worker* worker = nullptr;
  return worker;
}

// ---- The schedule --------------------------------------------------------------------------

void Worker::run(Shared& shared) {
  shared_ = &shared;
  const auto& dispatch = shared.dispatch;
  reverse_ = dispatch.schedule == METAL_HOST_REVERSE || dispatch.schedule == METAL_HOST_SIMDGROUP_REVERSE;
  simdgroup_at_a_time_ =
      dispatch.schedule == METAL_HOST_SIMDGROUP || dispatch.schedule == METAL_HOST_SIMDGROUP_REVERSE;
  const uint64_t count = static_cast<uint64_t>(shared.groups[0]) * shared.groups[1] * shared.groups[2];
  auto* const previous = std::exchange(current(), this);
  for (uint64_t i; !shared.failed && (i = shared.next_group++) < count;) {
    if (!run_group(reverse_ ? count - 1 - i : i)) {
      break;
    }
  }
  current() = previous;
}

bool Worker::run_group(uint64_t index) {
  const auto& dispatch = shared_->dispatch;
  ++group_count;
  const uint64_t rest[3] = {
      index % shared_->groups[0],
      index / shared_->groups[0] % shared_->groups[1],
      index / shared_->groups[0] / shared_->groups[1]};
  for (int i = 0; i < 3; ++i) {
    group_.position[i] = static_cast<uint32_t>(rest[i]);
    group_.groups[i] = shared_->groups[i];
    group_.grid[i] = dispatch.grid[i];
    group_.dispatch_threads[i] = dispatch.group[i];
    group_.threads[i] = std::min(dispatch.group[i], dispatch.grid[i] - group_.position[i] * dispatch.group[i]);
  }
  if (!threadgroup_memory_.reset(dispatch.threadgroup_lengths, dispatch.threadgroup_count)) {
    shared_->fail("the threadgroup memory that is bound exceeds 32 KiB");
    return false;
  }
  group_.buffers = shared_->pointers.data();
  group_.threadgroup_memory = threadgroup_memory_.arguments();
  thread_count_ = group_.threads[0] * group_.threads[1] * group_.threads[2];
  simdgroups_.resize(std::max<size_t>(simdgroups_.size(), (thread_count_ + kSimdgroupSize - 1) / kSimdgroupSize));
  ++barriers_;
  any_waits_ = false;
  waiting_.clear();
  fibers_used_ = 0;
  failed_ = false;
  range_ = {&group_, 0, 0, reverse_ ? ~0u : 1u};

  if (simdgroup_at_a_time_) {
    for_each_simdgroup([&](uint32_t simdgroup) {
      const auto [begin, end] = lanes_of(simdgroup);
      start(begin, end);
      while (!failed_ && resolve(simdgroup)) {
      }
    });
  } else {
    start(0, thread_count_);
  }
  while (!failed_ && any_waits_) {
    bool resolved = false;
    for_each_simdgroup([&](uint32_t simdgroup) { resolved |= !failed_ && resolve(simdgroup); });
    if (!failed_ && !resolved && !barrier()) {
      break;
    }
  }
  return !failed_;
}

// Runs threads from their beginning, each until it waits or ends.
void Worker::start(uint32_t begin, uint32_t end) {
  range_.next = reverse_ ? end - 1 : begin;
  range_.end = reverse_ ? begin - 1 : end;
  while (range_.next != range_.end && !failed_) {
    auto& fiber = spare_fiber();
    fiber.saved = fiber.stack.prepare([] { current()->run_threads(); });
    fiber.has_thread = false;
    resume(fiber);
    if (fiber.has_thread) {
      ++fibers_used_;
      if (!any_waits_) {
        any_waits_ = true;
        waiting_.assign(thread_count_, nullptr);
      }
      waiting_[fiber.thread] = fiber.state == State::kDone ? nullptr : &fiber;
    }
  }
}

// Lets the lanes that wait for the same simdgroup operation have each other's values. Where they wait for
// different ones, the one that comes first in the code: the others wait behind it, where the lanes meet again.
bool Worker::resolve(uint32_t simdgroup) {
  if (!any_waits_) {
    return false;
  }
  const Fiber* first = nullptr;
  for_each_lane(simdgroup, [&](uint32_t, Fiber& fiber) {
    if (fiber.state == State::kInSimdOperation && (first == nullptr || fiber.site < first->site)) {
      first = &fiber;
    }
  });
  if (first == nullptr) {
    return false;
  }
  ++simd_operation_count;
  ++simdgroups_[simdgroup].operations;
  const auto* const site = first->site;
  const auto operation = first->operation;
  uint32_t active = 0;
  auto& values = simdgroups_[simdgroup].values;
  const auto begin = lanes_of(simdgroup).first;
  for_each_lane(simdgroup, [&](uint32_t thread, Fiber& fiber) {
    if (fiber.state == State::kInSimdOperation && fiber.site == site && fiber.operation == operation) {
      active |= 1u << (thread - begin);
      std::memcpy(values[thread - begin], fiber.value, fiber.size);
    }
  });
  for_each_lane(simdgroup, [&](uint32_t thread, Fiber& fiber) {
    if (active >> (thread - begin) & 1 && !failed_) {
      fiber.active = active;
      resume(fiber);
      if (fiber.state == State::kDone) {
        waiting_[thread] = nullptr;
      }
    }
  });
  return true;
}

// Lets all threads pass the barrier at which all that have not ended wait; false if there are none.
bool Worker::barrier() {
  const Fiber* first = nullptr;
  for (const auto* fiber : waiting_) {
    if (fiber == nullptr) {
      continue;
    }
    if (first != nullptr && first->site != fiber->site) {
      std::ostringstream text;
      text << "threads " << first->thread << " and " << fiber->thread
           << " of a threadgroup wait at different barriers: a barrier is for all threads that have not returned";
      fiber_ = nullptr;
      failed_ = true;
      shared_->fail(text.str());
      return false;
    }
    first = fiber;
  }
  if (first == nullptr) {
    return false;
  }
  ++barrier_count;
  barriers_ += (first->mem_flags & kMemThreadgroup) != 0;
  for_each_simdgroup([&](uint32_t simdgroup) {
    if (!failed_) {
      resume_from_barrier(simdgroup);
    }
    while (simdgroup_at_a_time_ && !failed_ && resolve(simdgroup)) {
    }
  });
  return true;
}

void Worker::resume_from_barrier(uint32_t simdgroup) {
  for_each_lane(simdgroup, [&](uint32_t thread, Fiber& fiber) {
    if (!failed_) {
      resume(fiber);
      if (fiber.state == State::kDone) {
        waiting_[thread] = nullptr;
      }
    }
  });
}

std::pair<uint32_t, uint32_t> Worker::lanes_of(uint32_t simdgroup) const {
  const auto begin = simdgroup * kSimdgroupSize;
  return {begin, std::min(begin + kSimdgroupSize, thread_count_)};
}

template <typename F>
void Worker::for_each_lane(uint32_t simdgroup, const F& f) {
  const auto [begin, end] = lanes_of(simdgroup);
  for (uint32_t i = 0; i < end - begin; ++i) {
    const auto thread = reverse_ ? end - 1 - i : begin + i;
    if (waiting_[thread] != nullptr) {
      f(thread, *waiting_[thread]);
    }
  }
}

template <typename F>
void Worker::for_each_simdgroup(const F& f) {
  const auto count = (thread_count_ + kSimdgroupSize - 1) / kSimdgroupSize;
  for (uint32_t i = 0; i < count; ++i) {
    f(reverse_ ? count - 1 - i : i);
  }
}

Worker::Fiber& Worker::spare_fiber() {
  if (fibers_used_ == fibers_.size()) {
    fibers_.push_back(std::make_unique<Fiber>());
  }
  return *fibers_[fibers_used_];
}

// ---- Between the scheduler and a fiber -----------------------------------------------------

void Worker::resume(Fiber& fiber) {
  fiber_ = &fiber;
  fiber.state = State::kRunning;
  metal_host_switch(&scheduler_, fiber.saved);
  fiber_ = nullptr;
}

// As long as no thread waits, one fiber takes them all.
void Worker::run_threads() {
  auto* const fiber = fiber_;
  // After a thread has waited, others may have moved the range on.
  shared_->dispatch.kernel->run(&range_);
  fiber->state = State::kDone;
  metal_host_switch(&fiber->saved, scheduler_);
  __builtin_unreachable();
}

uint32_t Worker::current_thread() const {
  return fiber_->has_thread ? fiber_->thread : range_.next - range_.step;
}

void Worker::suspend(State state, const void* site) {
  auto* const fiber = fiber_;
  fiber->thread = current_thread();
  fiber->has_thread = true;
  fiber->site = site;
  fiber->state = state;
  metal_host_switch(&fiber->saved, scheduler_);
}

void Worker::wait_at_barrier(uint32_t mem_flags, const void* site) {
  fiber_->mem_flags = mem_flags;
  suspend(State::kAtBarrier, site);
}

metal_host_lanes Worker::exchange(const void* value, uint32_t size, uint32_t operation, const void* site) {
  auto* const fiber = fiber_;
  std::memcpy(fiber->value, value, size);
  fiber->size = size;
  fiber->operation = operation;
  suspend(State::kInSimdOperation, site);
  const auto simdgroup = fiber->thread / kSimdgroupSize;
  return {fiber->active, fiber->thread % kSimdgroupSize, simdgroups_[simdgroup].values};
}

void* Worker::threadgroup_variable(const void* key, size_t size, size_t alignment) {
  auto* const memory = threadgroup_memory_.variable(key, size, alignment);
  if (memory == nullptr) {
    fail("its threadgroup variables exceed 32 KiB");
  }
  return memory;
}

// ---- Failures ------------------------------------------------------------------------------

void Worker::record_failure(const std::string& thread, const std::string& what) {
  std::ostringstream text;
  text << thread << " of threadgroup (" << group_.position[0] << ", " << group_.position[1] << ", "
       << group_.position[2] << "): " << what;
  shared_->fail(text.str());
  failed_ = true;
}

std::string Worker::name_of(uint32_t thread) const {
  std::ostringstream name;
  const auto x = group_.threads[0], y = group_.threads[1];
  name << "thread (" << thread % x << ", " << thread / x % y << ", " << thread / (x * y) << ")";
  return name.str();
}

void Worker::fail(const std::string& what) {
  record_failure(name_of(current_thread()), what);
  metal_host_switch(&fiber_->saved, scheduler_); // never to be resumed
  __builtin_unreachable();
}

void* Worker::fail_from_signal(const std::string& what) {
  if (fiber_ == nullptr) {
    return nullptr;
  }
  // Which thread it was may be in a register only.
  record_failure("a thread", what);
  return scheduler_;
}

// What the code around a kernel reads and writes to call it.
bool Worker::is_own(const char* address, size_t size) const {
  const auto holds = [&](const void* begin, size_t length) {
    const auto* const start = static_cast<const char*>(begin);
    return Region{start, start + length, false, {}}.holds(address, size);
  };
  return holds(&group_, sizeof(group_)) || holds(&range_, sizeof(range_)) ||
      holds(simdgroups_.data(), simdgroups_.size() * sizeof(Simdgroup)) ||
      holds(shared_->pointers.data(), shared_->pointers.size() * sizeof(void*)) ||
      holds(group_.threadgroup_memory, shared_->dispatch.threadgroup_count * sizeof(void*));
}

void Worker::check_race(const char* address, size_t size, bool write) {
  if (races_ == nullptr) {
    races_ = std::make_unique<RaceDetector>(kThreadgroupCapacity);
  }
  const auto thread = current_thread();
  const auto simdgroup = thread / kSimdgroupSize;
  const auto other = races_->access(
      threadgroup_memory_.offset_of(address), size, write, {thread, barriers_, simdgroups_[simdgroup].operations});
  if (!other) {
    return;
  }
  const auto& regions = threadgroup_memory_.regions();
  const auto region = std::find_if(
      regions.begin(), regions.end(), [&](const Region& region) { return region.holds(address, size); });
  std::ostringstream text;
  text << (write ? "writes" : "reads") << " byte " << address - region->begin << " of " << region->name << ", which "
       << name_of(*other) << " touched too since the last barrier that orders threadgroup memory";
  fail(text.str());
}

void Worker::check_access(const char* address, size_t size, bool write) {
  if (fiber_->stack.holds(address, size)) {
    return;
  }
  const auto allowed = [&](const std::vector<Region>& regions) {
    return std::any_of(regions.begin(), regions.end(), [&](const Region& region) {
      return region.holds(address, size) && (region.writable || !write);
    });
  };
  if (allowed(threadgroup_memory_.regions())) {
    check_race(address, size, write);
    return;
  }
  if (allowed(shared_->buffers) || allowed(image_regions()) || is_own(address, size)) {
    return;
  }
  // Near which of them?
  const Region* nearest = nullptr;
  int64_t distance = 0;
  const auto consider = [&](const std::vector<Region>& regions) {
    for (const auto& region : regions) {
      const int64_t d = address < region.begin ? address - region.begin
          : address + size > region.end       ? address - region.end
                                              : 0;
      if (nearest == nullptr || std::abs(d) < std::abs(distance)) {
        nearest = &region;
        distance = d;
      }
    }
  };
  consider(shared_->buffers);
  consider(threadgroup_memory_.regions());
  std::ostringstream text;
  text << (write ? "writes " : "reads ") << size << (size == 1 ? " byte " : " bytes ");
  if (nearest == nullptr) {
    text << "at " << static_cast<const void*>(address) << ", where nothing is bound";
  } else if (distance < 0) {
    text << -distance << " bytes before " << nearest->name;
  } else if (distance == 0 && write && !nearest->writable) {
    text << "into " << nearest->name << ", which is constant";
  } else {
    text << distance << " bytes after the end of " << nearest->name << " (" << nearest->end - nearest->begin
         << " bytes)";
  }
  fail(text.str());
}

} // namespace metal_host
