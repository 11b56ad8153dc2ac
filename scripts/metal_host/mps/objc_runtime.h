// Objects of the Objective-C runtime. Their reference count lies before them.
#pragma once

#include <objc/objc.h>

#include <atomic>
#include <cstddef>

extern "C" {
id metal_host_create_object(Class cls); // with one reference
void metal_host_destroy_object(id object);
std::atomic<size_t>* metal_host_retains(id object);
}
