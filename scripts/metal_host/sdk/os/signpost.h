// Signposts, as far as MPSProfiler.h names them.
#pragma once

#include <os/log.h>
#include <stdint.h>
#include <time.h>

typedef uint64_t os_signpost_id_t;
typedef uint8_t os_signpost_type_t;

extern "C" uint64_t clock_gettime_nsec_np(clockid_t clock); // of macOS's <time.h>
