// Runs threadgroups, one at a time on each host thread.
#pragma once

#include "fiber.h"
#include "memory.h"
#include "races.h"
#include "runtime.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace metal_host {

constexpr uint32_t kSimdgroupSize = 32;
constexpr uint32_t kMaxThreads = 1024;

// What the host threads of a dispatch share.
struct Shared {
  const metal_host_dispatch& dispatch;
  uint32_t groups[3] = {};
  std::vector<Region> buffers{};
  std::vector<void*> pointers{};
  std::atomic<uint64_t> next_group{0};
  std::atomic<bool> failed{false};
  std::mutex mutex{};
  std::string failure{};

  void fail(const std::string& text);
};

class Worker {
 public:
  Worker() = default;
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Takes groups of the dispatch until there are none left.
  void run(Shared& shared);

  // From a kernel's thread.
  void wait_at_barrier(uint32_t mem_flags, const void* site);
  metal_host_lanes exchange(const void* value, uint32_t size, uint32_t operation, const void* site);
  void* threadgroup_variable(const void* key, size_t size, size_t alignment);
  void check_access(const char* address, size_t size, bool write);
  [[noreturn]] void fail(const std::string& what);
  // The same from a signal handler, which goes on by itself; null if no thread of a kernel runs.
  void* fail_from_signal(const std::string& what);

  // The body of every fiber.
  void run_threads();

  static Worker*& current();

 private:
  enum class State { kRunning, kAtBarrier, kInSimdOperation, kDone };

  struct Fiber {
    Stack stack;
    void* saved = nullptr;
    State state = State::kDone;
    uint32_t thread = 0;
    bool has_thread = false; // it has waited once, so it is one thread's alone
    const void* site = nullptr;
    uint32_t operation = 0;
    uint32_t size = 0;
    uint32_t active = 0;
    uint32_t mem_flags = 0;
    alignas(16) char value[16];
  };

  struct Simdgroup {
    alignas(16) char values[kSimdgroupSize][16];
    uint32_t operations = 0;
  };

  bool run_group(uint64_t index);
  void start(uint32_t begin, uint32_t end);
  bool resolve(uint32_t simdgroup);
  void resume_from_barrier(uint32_t simdgroup);
  bool barrier();
  void resume(Fiber& fiber);
  void suspend(State state, const void* site);
  uint32_t current_thread() const;
  std::pair<uint32_t, uint32_t> lanes_of(uint32_t simdgroup) const;
  template <typename F>
  void for_each_lane(uint32_t simdgroup, const F& f);
  template <typename F>
  void for_each_simdgroup(const F& f);
  Fiber& spare_fiber();
  void record_failure(const std::string& thread, const std::string& what);
  void check_race(const char* address, size_t size, bool write);
  std::string name_of(uint32_t thread) const;
  bool is_own(const char* address, size_t size) const;

  Shared* shared_ = nullptr;
  metal_host_group group_{};
  metal_host_thread_range range_{};
  uint32_t thread_count_ = 0;
  bool reverse_ = false;
  bool simdgroup_at_a_time_ = false;
  bool failed_ = false;

  void* scheduler_ = nullptr; // where the host thread's own stack is
  Fiber* fiber_ = nullptr; // the one that runs
  std::vector<std::unique_ptr<Fiber>> fibers_;
  size_t fibers_used_ = 0;
  bool any_waits_ = false;
  std::vector<Fiber*> waiting_; // by thread index, once one waits; null: not started, or done
  std::vector<Simdgroup> simdgroups_;
  ThreadgroupMemory threadgroup_memory_;
  uint32_t barriers_ = 0; // since the worker began, and one for each group
  std::unique_ptr<RaceDetector> races_; // where loads and stores are checked
};

extern std::atomic<uint64_t> barrier_count, simd_operation_count, group_count;

} // namespace metal_host
