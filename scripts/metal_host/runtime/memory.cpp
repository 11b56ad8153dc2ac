#include "memory.h"

#include <link.h>

#include <cstdlib>
#include <cstring>
#include <mutex>

namespace metal_host {

namespace {

constexpr unsigned char kPattern = 0xaa; // a NaN that is not quiet in no type, and a large index
constexpr size_t kGap = 256; // what overruns one variable does not reach the next

} // namespace

ThreadgroupMemory::ThreadgroupMemory() : memory_(static_cast<char*>(std::aligned_alloc(256, kThreadgroupCapacity))) {}

ThreadgroupMemory::~ThreadgroupMemory() {
  std::free(memory_);
}

bool ThreadgroupMemory::reset(const uint32_t* lengths, uint32_t count) {
  std::memset(memory_, kPattern, reserved_);
  reserved_ = used_ = 0;
  variables_.clear();
  regions_.clear();
  arguments_.assign(count, nullptr);
  for (uint32_t i = 0; i < count; ++i) {
    if (lengths[i] == 0) {
      continue;
    }
    arguments_[i] = allocate(lengths[i], 16, "threadgroup argument " + std::to_string(i));
    if (arguments_[i] == nullptr) {
      return false;
    }
  }
  return true;
}

void* ThreadgroupMemory::variable(const void* key, size_t size, size_t alignment) {
  for (const auto& variable : variables_) {
    if (variable.key == key) {
      return variable.memory;
    }
  }
  auto* memory = allocate(size, alignment, "threadgroup variable " + std::to_string(variables_.size()));
  if (memory != nullptr) {
    variables_.push_back({key, memory});
  }
  return memory;
}

char* ThreadgroupMemory::allocate(size_t size, size_t alignment, std::string name) {
  const auto start = (reserved_ + alignment - 1) / alignment * alignment;
  if (used_ + size > kThreadgroupMemory || start + size + kGap > kThreadgroupCapacity) {
    return nullptr;
  }
  used_ += size;
  reserved_ = start + size + kGap;
  auto* memory = memory_ + start;
  std::memset(memory_ + start, kPattern, size + kGap);
  regions_.push_back({memory, memory + size, true, std::move(name)});
  return memory;
}

// ---- Images --------------------------------------------------------------------------------

namespace {

std::mutex images_mutex;
std::vector<Region> images;

int visit(dl_phdr_info* info, size_t, void* wanted) {
  const auto address = reinterpret_cast<uintptr_t>(wanted);
  std::vector<Region> regions;
  bool found = false;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD) {
      continue;
    }
    const auto begin = info->dlpi_addr + segment.p_vaddr;
    found |= address >= begin && address < begin + segment.p_memsz;
    regions.push_back(
        {reinterpret_cast<const char*>(begin),
         reinterpret_cast<const char*>(begin + segment.p_memsz),
         (segment.p_flags & PF_W) != 0,
         "the kernel library's constants"});
  }
  if (found) {
    images.insert(images.end(), regions.begin(), regions.end());
  }
  return found;
}

} // namespace

const std::vector<Region>& image_regions() {
  return images;
}

void add_image(const void* address) {
  const std::lock_guard<std::mutex> lock(images_mutex);
  for (const auto& region : images) {
    if (region.holds(static_cast<const char*>(address), 1)) {
      return;
    }
  }
  dl_iterate_phdr(visit, const_cast<void*>(address));
}

} // namespace metal_host
