"""conv_transpose1d and its gradients in numpy, and the calls that PyTorch refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class Parameters:
    stride: int = 1
    padding: int = 0
    output_padding: int = 0
    dilation: int = 1
    groups: int = 1

    def output_length(self, length: int, taps: int) -> int:
        spread = (length - 1) * self.stride + self.dilation * (taps - 1) + 1
        return spread - 2 * self.padding + self.output_padding

    def arguments(self) -> dict[str, int]:
        return dict(self.__dict__)

    def convolution_arguments(self) -> tuple:
        """Those of aten.convolution after the tensors."""
        return [self.stride], [self.padding], [self.dilation], True, [self.output_padding], self.groups


def double(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().double().numpy()


def forward(x: np.ndarray, w: np.ndarray, b: np.ndarray | None, p: Parameters) -> np.ndarray:
    """By its definition: each input is multiplied with each tap and added where it lands. In the arrays' dtype."""
    (n, _, length), (_, group_out, taps) = x.shape, w.shape
    wide = _spread(np.zeros((n, group_out * p.groups, 0), x.dtype), length, taps, p)
    grouped = _grouped(x, p.groups)
    for tap in range(taps):
        each = w[:, :, tap].reshape(p.groups, -1, group_out).swapaxes(1, 2) @ grouped
        wide[:, :, _landing(tap, length, p)] += each.reshape(n, -1, length)
    out = wide[:, :, p.padding : p.padding + p.output_length(length, taps)]
    return out if b is None else out + b[:, None]


def backward(
    grad: np.ndarray, x: np.ndarray, w: np.ndarray, p: Parameters
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The gradients of input, weight and bias."""
    length, taps = x.shape[2], w.shape[2]
    wide = _spread(grad, length, taps, p)
    grad_x, grad_w = np.zeros_like(x), np.zeros_like(w)
    grouped = _grouped(x, p.groups)
    for tap in range(taps):
        here = _grouped(wide[:, :, _landing(tap, length, p)], p.groups)
        weight = w[:, :, tap].reshape(p.groups, -1, w.shape[1])
        grad_x += (weight @ here).reshape(x.shape)
        grad_w[:, :, tap] = (grouped @ here.swapaxes(2, 3)).sum(0).reshape(w.shape[:2])
    return grad_x, grad_w, grad.sum((0, 2))


def fma(x: np.ndarray, w: np.ndarray, b: np.ndarray | None, p: Parameters) -> np.ndarray:
    """What a chain of float32 fused multiply-adds gives: exact products, one rounding for each."""
    (n, channels, length), (_, group_out, taps) = x.shape, w.shape
    wide = _spread(np.zeros((n, group_out * p.groups, 0), np.float32), length, taps, p)
    each = channels // p.groups
    for tap in range(taps):
        at = _landing(tap, length, p)
        for i in range(each):
            factor = np.repeat(x[:, i::each], group_out, axis=1).astype(np.float64)
            terms = factor * w[i::each, :, tap].reshape(-1)[:, None].astype(np.float64)
            with np.errstate(over="ignore", invalid="ignore"):
                wide[:, :, at] = (wide[:, :, at].astype(np.float64) + terms).astype(np.float32)
    out = wide[:, :, p.padding : p.padding + p.output_length(length, taps)]
    return out if b is None else out + b[:, None]


def terms(x: np.ndarray, w: np.ndarray, p: Parameters) -> int:
    """The most products that one output can have."""
    return x.shape[1] // p.groups * w.shape[2]


def _spread(grad: np.ndarray, length: int, taps: int, p: Parameters) -> np.ndarray:
    """The output before its padding is cut off, zeros where nothing was given."""
    size = max(p.padding + grad.shape[2], (length - 1) * p.stride + p.dilation * (taps - 1) + 1 + p.output_padding)
    wide = np.zeros((*grad.shape[:2], size), grad.dtype)
    wide[:, :, p.padding : p.padding + grad.shape[2]] = grad
    return wide


def _landing(tap: int, length: int, p: Parameters) -> slice:
    first = tap * p.dilation
    return slice(first, first + (length - 1) * p.stride + 1, p.stride)


def _grouped(x: np.ndarray, groups: int) -> np.ndarray:
    return x.reshape(x.shape[0], groups, -1, x.shape[2])


# ---- What PyTorch refuses -------------------------------------------------------------------

Make = Callable[..., torch.Tensor]  # make(*sizes, dtype=torch.float32): a tensor on the device under test


def _backward(grad, x, w, *arguments, mask=(True, True, True)):
    return torch.ops.aten.convolution_backward(grad, x, w, [w.size(1)], *arguments, mask)


def bad_calls(make: Make) -> dict[str, Callable[[], object]]:
    """By name. All but those of mixed devices, which need two."""
    x, w, b = make(2, 4, 10), make(4, 6, 3), make(6)

    def call(x=x, w=w, b=b, **kwargs):
        return lambda: F.conv_transpose1d(x, w, b, **kwargs)

    def direct(stride=(1,), padding=(0,), dilation=(1,), output_padding=(0,), groups=1):
        return lambda: torch.ops.aten.convolution(x, w, b, stride, padding, dilation, True, output_padding, groups)

    plain = Parameters().convolution_arguments()
    grad = make(2, 6, 12)
    return {
        "stride 0": call(stride=0),
        "negative stride": call(stride=-1),
        "dilation 0": call(dilation=0),
        "negative padding": call(padding=-1),
        "negative output_padding": call(output_padding=-1, stride=2),
        "output_padding of stride and dilation": call(output_padding=1),
        "output_padding above both": call(output_padding=3, stride=2, dilation=3),
        "output_padding of both": call(output_padding=2, stride=2, dilation=2),
        "groups 0": call(groups=0),
        "negative groups": call(groups=-1),
        "groups that do not divide": call(groups=3),
        "groups above the channels": call(groups=8),
        "channels": call(x=make(2, 5, 10)),
        "weight of two dimensions": call(w=make(4, 6)),
        "weight of four dimensions": call(w=make(4, 6, 3, 1)),
        "input of one dimension": call(x=make(10)),
        "input of four dimensions": call(x=make(2, 4, 10, 1)),
        "bias of another size": call(b=make(5)),
        "bias of two dimensions": call(b=make(6, 1)),
        "bias of another dtype": call(b=make(6, dtype=torch.float16)),
        "weight of another dtype": call(w=make(4, 6, 3, dtype=torch.float16)),
        "input of another dtype": call(x=make(2, 4, 10, dtype=torch.float16)),
        "integers": call(x=x.long(), w=w.long(), b=b.long()),
        "no input positions": call(x=make(2, 4, 0)),
        "no output": call(padding=6),
        "negative output": call(padding=7),
        "two strides": direct(stride=(1, 1)),
        "no padding": direct(padding=()),
        "two output_paddings": direct(output_padding=(0, 0), stride=(2,)),
        "backward: shape of grad_output": lambda: _backward(make(2, 6, 11), x, w, *plain),
        "backward: channels of grad_output": lambda: _backward(make(2, 5, 12), x, w, *plain),
        "backward: batch of grad_output": lambda: _backward(make(1, 6, 12), x, w, *plain),
        "backward: dimensions of grad_output": lambda: _backward(make(6, 12), x, w, *plain),
        "backward: dtype of grad_output": lambda: _backward(grad.half(), x, w, *plain),
        "backward: dtype of weight": lambda: _backward(grad, x, w.half(), *plain),
        "backward: stride 0": lambda: _backward(grad, x, w, [0], *plain[1:]),
        "backward: output_padding": lambda: _backward(make(2, 6, 13), x, w, *plain[:4], [1], 1),
    }


def raised(call: Callable[[], object]) -> tuple[type, str]:
    """What a call raises; (None, what it gave) if it raises nothing."""
    try:
        result = call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    except Exception as error:
        return type(error), str(error)
    results = result if isinstance(result, tuple) else (result,)
    return type(None), str([tuple(tensor.shape) for tensor in results])
