// The part of libdispatch that PyTorch's headers and the overlay's host code use, declared anew.
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct dispatch_queue_s* dispatch_queue_t;
typedef struct dispatch_queue_attr_s* dispatch_queue_attr_t;

#define DISPATCH_QUEUE_SERIAL nullptr

extern "C" {
dispatch_queue_t dispatch_queue_create(const char* label, dispatch_queue_attr_t attributes);
void dispatch_release(dispatch_queue_t queue);
#ifdef __BLOCKS__
typedef void (^dispatch_block_t)(void);
void dispatch_sync(dispatch_queue_t queue, dispatch_block_t block);
#endif
}
