// The library that kernels see, all of it, in front of a rewritten kernel source.
#pragma once

#pragma clang system_header

#include <metal_host_macros.h>

#include "abi.h"
#include "types.h"
#include "vec.h"
#include "math.h"
#include "atomic.h"
#include "simd.h"
#include "kernel.h"
