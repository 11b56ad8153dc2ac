#pragma once

#include <ATen/native/DispatchStub.h>

namespace at {
struct TensorIteratorBase;

namespace native {

using dummy_cube_fn = void (*)(TensorIteratorBase&);
DECLARE_DISPATCH(dummy_cube_fn, dummy_cube_stub)


} // namespace native
} // namespace at
