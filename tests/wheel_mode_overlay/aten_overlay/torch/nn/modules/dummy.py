import torch.nn.functional as F

from .module import Module


class Dummy(Module):
    def forward(self, input):
        return F.dummy_scale(input)
