"""What torch.compile makes of causal_conv1d_update; see CausalConv1dUpdate.cpp."""

import torch
from torch import Tensor


@torch.ops.aten.causal_conv1d_update.default.py_impl(torch._C.DispatchKey.CompositeImplicitAutograd)
def causal_conv1d_update(*args, **kwargs) -> Tensor:
    return torch.ops.aten_overlay.causal_conv1d_update.default(*args, **kwargs)
