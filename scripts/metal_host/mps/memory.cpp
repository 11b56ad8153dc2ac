#include "memory.h"

#include <sys/mman.h>

#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <stdexcept>

namespace metal_host {

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kReserved = size_t{1} << 44; // handles are never used twice, so that stale ones are noticed
constexpr size_t kPoisoned = size_t{1} << 20; // larger buffers stay sparse
constexpr int kPoison = 0xAA;

struct Buffer {
  std::shared_ptr<DeviceMemory> memory;
  size_t retains = 1;
};

char* map(size_t size, int protection) {
  void* address = mmap(nullptr, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    throw std::bad_alloc();
  }
  return static_cast<char*>(address);
}

struct Handles {
  std::mutex mutex;
  std::map<const void*, Buffer> buffers;
  size_t used = 0;
  size_t bytes = 0;
  char* const begin = map(kReserved, PROT_NONE);
};

Handles& handles() {
  static auto* instance = new Handles; // tensors may outlive static destructors
  return *instance;
}

size_t whole_pages(size_t size) {
  return (size + kPage - 1) / kPage * kPage;
}

} // namespace

DeviceMemory::DeviceMemory(size_t size) : data(map(whole_pages(size), PROT_READ | PROT_WRITE)), size(size) {
  if (size <= kPoisoned) {
    std::memset(data, kPoison, size);
  }
}

DeviceMemory::~DeviceMemory() {
  munmap(data, whole_pages(size));
}

void* allocate_buffer(size_t size) {
  auto& all = handles();
  auto memory = std::make_shared<DeviceMemory>(size);
  const std::lock_guard lock(all.mutex);
  const auto reserve = whole_pages(size) + kPage;
  if (reserve > kReserved - all.used) {
    throw std::bad_alloc();
  }
  void* handle = all.begin + all.used;
  all.used += reserve;
  all.bytes += size;
  all.buffers.emplace(handle, Buffer{std::move(memory)});
  return handle;
}

void retain_buffer(void* handle) {
  auto& all = handles();
  const std::lock_guard lock(all.mutex);
  ++all.buffers.at(handle).retains;
}

void release_buffer(void* handle) {
  auto& all = handles();
  const std::lock_guard lock(all.mutex);
  const auto found = all.buffers.find(handle);
  if (found != all.buffers.end() && --found->second.retains == 0) {
    all.bytes -= found->second.memory->size;
    all.buffers.erase(found);
  }
}

bool is_handle(const void* address) {
  const auto& all = handles();
  return address >= all.begin && address < all.begin + kReserved;
}

std::shared_ptr<DeviceMemory> memory_of(const void* handle) {
  auto& all = handles();
  const std::lock_guard lock(all.mutex);
  const auto found = all.buffers.find(handle);
  if (found == all.buffers.end()) {
    throw std::runtime_error("expected an id<MTLBuffer> that is alive, the data of a tensor's storage");
  }
  return found->second.memory;
}

size_t allocated_bytes() {
  auto& all = handles();
  const std::lock_guard lock(all.mutex);
  return all.bytes;
}

} // namespace metal_host
