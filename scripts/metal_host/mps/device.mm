// Allocator, guard, hooks.
#include "device.h"

#include "commands.h"
#include "memory.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/MPSHooksInterface.h>
#include <ATen/mps/MPSStream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstring>

namespace metal_host {

namespace {

using namespace at;

const Device kDevice(kMPS, 0);

struct MPSAllocator final : c10::Allocator {
  // A storage's data is the id<MTLBuffer>; there is none for nothing. As on a Mac it ends with a whole word: atomics on
  // half precision are on words.
  DataPtr allocate(size_t size) override {
    if (size == 0) {
      return {nullptr, kDevice};
    }
    void* handle = allocate_buffer((size + 3) / 4 * 4);
    return {handle, handle, &release_buffer, kDevice};
  }

  DeleterFnPtr raw_deleter() const override {
    return nullptr; // data and context differ in their meaning
  }

  void copy_data(void* to, const void* from, size_t size) const override {
    CommandQueue::instance().add([to = memory_of(to), from = memory_of(from), size] {
      std::memcpy(to->data, from->data, size);
    });
  }
};

MPSAllocator allocator;
const bool allocator_is_set = (c10::SetAllocator(kMPS, &allocator), true);

// One device with one stream. What was recorded is done when the stream has nothing left to do.
struct MPSGuard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override {
    return kMPS;
  }
  Device exchangeDevice(Device) const override {
    return kDevice;
  }
  Device getDevice() const override {
    return kDevice;
  }
  void setDevice(Device device) const override {
    TORCH_CHECK(device.index() <= 0, "expected mps:0, but got ", device);
  }
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device) const override {
    return Stream(Stream::DEFAULT, kDevice);
  }
  Stream getDefaultStream(Device) const override {
    return Stream(Stream::DEFAULT, kDevice);
  }
  Stream exchangeStream(Stream stream) const override {
    return stream;
  }
  DeviceIndex deviceCount() const noexcept override {
    return 1;
  }
  void record(void** event, const Stream&, DeviceIndex, EventFlag) const override {
    *event = const_cast<Device*>(&kDevice);
  }
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override {
    return CommandQueue::instance().is_idle();
  }
  bool queryStream(const Stream&) const override {
    return CommandQueue::instance().is_idle();
  }
  void synchronizeEvent(void*) const override {
    synchronize();
  }
  void synchronizeStream(const Stream&) const override {
    synchronize();
  }
  void synchronizeDevice(DeviceIndex) const override {
    synchronize();
  }
};

C10_REGISTER_GUARD_IMPL(MPS, MPSGuard)

struct MPSHooks final : MPSHooksInterface {
  void init() const override {}
  bool hasMPS() const override {
    return true;
  }
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool isOnMacOSorNewer(unsigned, unsigned) const override {
    return true;
  }
  bool hasPrimaryContext(DeviceIndex) const override {
    return true;
  }
  DeviceIndex deviceCount() const override {
    return 1;
  }
  DeviceIndex getCurrentDevice() const override {
    return 0;
  }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override {
    return 0;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override {
    return 0;
  }
  Allocator* getMPSDeviceAllocator() const override {
    return &allocator;
  }
  void deviceSynchronize() const override {
    synchronize();
  }
  void commitStream() const override {}
  void emptyCache() const override {}
  size_t getCurrentAllocatedMemory() const override {
    return allocated_bytes();
  }
  size_t getDriverAllocatedMemory() const override {
    return allocated_bytes();
  }
  size_t getRecommendedMaxMemory() const override {
    return size_t{1} << 40;
  }
  size_t getMaxBufferLength() const override {
    return size_t{1} << 40;
  }
  void profilerStartTrace(const std::string&, bool) const override {}
  void profilerStopTrace() const override {}
  uint32_t acquireEvent(bool) const override {
    return 1;
  }
  void releaseEvent(uint32_t) const override {}
  void recordEvent(uint32_t) const override {}
  void waitForEvent(uint32_t) const override {}
  void synchronizeEvent(uint32_t) const override {
    synchronize();
  }
  bool queryEvent(uint32_t) const override {
    return CommandQueue::instance().is_idle();
  }

  // Random numbers are drawn on the CPU.
  const Generator& getDefaultGenerator(DeviceIndex) const override {
    static const auto generator = getNewGenerator(0);
    return generator;
  }
  Generator getNewGenerator(DeviceIndex) const override {
    return make_generator<CPUGeneratorImpl>(default_rng_seed_val);
  }
};

C10_REGISTER_TYPED_CLASS(MPSHooksRegistry, "MPSHooks", MPSHooks)

} // namespace

c10::Allocator* mps_allocator() {
  return &allocator;
}

void synchronize() {
  at::mps::getCurrentMPSStream()->synchronize(at::mps::SyncType::COMMIT_AND_WAIT);
}

} // namespace metal_host
