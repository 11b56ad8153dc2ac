// Memory of the simulated device. The host holds buffers by handles: addresses that are reserved and never mapped, as
// long as the buffer, so that host code which reads or writes a tensor's data_ptr() faults.
#pragma once

#include <cstddef>
#include <memory>

namespace metal_host {

struct DeviceMemory {
  explicit DeviceMemory(size_t size);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  char* data; // page-aligned; pages that are never touched cost nothing
  size_t size;
};

// A new buffer, its handle, owned by the caller.
void* allocate_buffer(size_t size);
void retain_buffer(void* handle);
void release_buffer(void* handle);

// Whether an address is in the range that handles are from.
bool is_handle(const void* address);
// The memory behind a handle; throws for what is none, or not any more.
std::shared_ptr<DeviceMemory> memory_of(const void* handle);

size_t allocated_bytes();

} // namespace metal_host
