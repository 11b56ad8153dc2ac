import torch
from torch.testing._internal.common_dtype import floating_types
from torch.testing._internal.opinfo.core import OpInfo, SampleInput


def sample_inputs(op_info, device, dtype, requires_grad, **kwargs):
    return [SampleInput(torch.ones(3, device=device, dtype=dtype, requires_grad=requires_grad))]


op_db = [OpInfo("nn.functional.dummy_scale", dtypes=floating_types(), sample_inputs_func=sample_inputs)]
