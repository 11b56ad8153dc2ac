// The parts of the simulated device that PyTorch's CPU build asks of a backend.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

namespace metal_host {

c10::Allocator* mps_allocator();

// Waits for all commands, and raises what kernels reported.
void synchronize();

// A CPU tensor on the memory of a tensor of the device, which commands may still be writing. CPU tensors as they are.
at::Tensor host_view(const at::Tensor& tensor);

} // namespace metal_host
