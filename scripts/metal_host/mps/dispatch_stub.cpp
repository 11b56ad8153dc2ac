// DispatchStub without USE_MPS has no case for MPS. This library is loaded before torch, so that torch calls this
// function in place of its own.
#include <ATen/native/DispatchStub.h>

#include <dlfcn.h>

namespace at::native {

// As a plain function: the object, then what the member takes.
using try_get_call_ptr_fn = DispatchResult (*)(DispatchStubImpl*, c10::DeviceType, void*, void*, void*);

DispatchResult DispatchStubImpl::try_get_call_ptr(c10::DeviceType type, void* DEFAULT, void* AVX512, void* AVX2) {
  if (type == c10::DeviceType::MPS) {
    return mps_dispatch_ptr != nullptr ? DispatchResult(mps_dispatch_ptr) : ErrorType::MissingDeviceKernel;
  }
  static const auto original = [] {
    void* torch_cpu = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
    return reinterpret_cast<try_get_call_ptr_fn>(dlsym(
        torch_cpu, "_ZN2at6native16DispatchStubImpl16try_get_call_ptrEN3c1010DeviceTypeEPvS4_S4_"));
  }();
  return original(this, type, DEFAULT, AVX512, AVX2);
}

} // namespace at::native
