// What clang's instrumentation calls: for every load and store (-fsanitize=kernel-address, outlined) and
// where behaviour is undefined (-fsanitize=undefined). Our own ends of both, since they know what a kernel
// may touch, to the byte, and who was at fault.
#include "scheduler.h"

#include <cstring>

using metal_host::Worker;

// Code that no worker runs is a library's own, when it is loaded.
static void check(const void* address, size_t size, bool write) {
  if (auto* const worker = Worker::current()) {
    worker->check_access(static_cast<const char*>(address), size, write);
  }
}

#define ACCESS(size)                                           \
  void __asan_load##size##_noabort(const char* address) {      \
    check(address, size, false);     \
  }                                                            \
  void __asan_store##size##_noabort(const char* address) {     \
    check(address, size, true);      \
  }

extern "C" {
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)

void __asan_loadN_noabort(const char* address, size_t size) {
  check(address, size, false);
}
void __asan_storeN_noabort(const char* address, size_t size) {
  check(address, size, true);
}
void* __asan_memcpy(void* to, const void* from, size_t size) {
  if (size != 0) {
    check(from, size, false);
    check(to, size, true);
  }
  return std::memcpy(to, from, size);
}
void* __asan_memmove(void* to, const void* from, size_t size) {
  return __asan_memcpy(to, from, size);
}
void* __asan_memset(void* to, int value, size_t size) {
  if (size != 0) {
    check(to, size, true);
  }
  return std::memset(to, value, size);
}
void __asan_handle_no_return() {}

// The data of every handler begins with the place in the source.
struct SourceLocation {
  const char* file;
  uint32_t line;
  uint32_t column;
};

[[noreturn]] static void undefined(const SourceLocation* place, const char* what) {
  Worker::current()->fail(std::string(what) + " at " + place->file + ":" + std::to_string(place->line));
}

#define UNDEFINED(handler, what)                              \
  void __ubsan_handle_##handler(const SourceLocation* place) { \
    undefined(place, what);                                   \
  }

UNDEFINED(add_overflow, "a signed addition overflows")
UNDEFINED(sub_overflow, "a signed subtraction overflows")
UNDEFINED(mul_overflow, "a signed multiplication overflows")
UNDEFINED(negate_overflow, "a negation overflows")
UNDEFINED(divrem_overflow, "an integer division by zero, or one that overflows,")
UNDEFINED(shift_out_of_bounds, "a shift by a negative amount or by all the bits")
UNDEFINED(out_of_bounds, "an index outside of its array")
UNDEFINED(builtin_unreachable, "unreachable code is reached")
UNDEFINED(missing_return, "a function ends without a return value")
UNDEFINED(load_invalid_value, "a bool or enum holds a value that it cannot have")
UNDEFINED(invalid_builtin, "clz or ctz of zero")
UNDEFINED(pointer_overflow, "an offset from a null pointer, or one that overflows,")
UNDEFINED(nonnull_arg, "null where it may not be")
UNDEFINED(nullability_arg, "null where it may not be")
UNDEFINED(function_type_mismatch, "a call through a pointer of another type")

struct TypeMismatch {
  SourceLocation place;
  const void* type;
  uint8_t log_alignment;
  uint8_t kind;
};
void __ubsan_handle_type_mismatch_v1(const TypeMismatch* data, uintptr_t pointer) {
  const bool null = pointer == 0;
  undefined(&data->place, null ? "access through a null pointer: a buffer is not bound" : "a misaligned access");
}
}
