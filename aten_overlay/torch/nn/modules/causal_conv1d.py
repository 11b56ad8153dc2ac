from typing import Optional, Union

import torch.nn.functional as F
from torch import Tensor

from .conv import Conv1d


__all__ = ["CausalConv1d"]


class CausalConv1d(Conv1d):
    r"""Causal depthwise 1-D convolution with an optional bias and SiLU.

    The module of :func:`torch.nn.functional.causal_conv1d`, which has the formula. It is a
    :class:`~torch.nn.Conv1d` with ``groups=channels``, ``stride=1``, ``dilation=1`` and
    ``padding=0`` (the :math:`W - 1` inputs before the start are taken as 0, or from a state, without
    being stored), and exchanges its ``state_dict`` with one.

    Args:
        channels (int): number of channels :math:`D`
        kernel_size (int): number of taps :math:`W`, at least 1
        bias (bool): whether to learn a bias. Default: ``True``
        activation (str, optional): ``None``, ``"silu"`` or ``"swish"``. Default: ``None``

    Shape:
        - Input: :math:`(B, D, T)` or :math:`(D, T)`
        - Output: the shape of the input

    Attributes:
        weight (Tensor): :math:`(D, 1, W)`, initialised as by :class:`~torch.nn.Conv1d`
        bias (Tensor): :math:`(D)`, likewise

    Examples::

        >>> m = nn.CausalConv1d(64, 4, activation="silu")
        >>> output = m(torch.randn(8, 64, 256))
        >>> output.shape
        torch.Size([8, 64, 256])
    """

    __constants__ = [*Conv1d.__constants__, "activation"]
    activation: Optional[str]

    def __init__(
        self,
        channels: int,
        kernel_size: int,
        bias: bool = True,
        activation: Optional[str] = None,
        device=None,
        dtype=None,
    ) -> None:
        if activation not in (None, "silu", "swish"):
            raise ValueError(f"activation must be None, 'silu' or 'swish', but got {activation!r}")
        super().__init__(channels, channels, kernel_size, groups=channels, bias=bias, device=device, dtype=dtype)
        self.activation = activation

    def forward(  # type: ignore[override]
        self,
        input: Tensor,
        *,
        initial_state: Optional[Tensor] = None,
        return_final_state: bool = False,
        seq_idx: Optional[Tensor] = None,
        cu_seqlens: Optional[Tensor] = None,
    ) -> Union[Tensor, tuple[Tensor, Tensor]]:
        """Runs the forward pass; see :func:`torch.nn.functional.causal_conv1d` for the arguments."""
        return F.causal_conv1d(
            input,
            self.weight,
            self.bias,
            self.activation,
            initial_state=initial_state,
            return_final_state=return_final_state,
            seq_idx=seq_idx,
            cu_seqlens=cu_seqlens,
        )

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, kernel_size={self.kernel_size[0]}"
        if self.bias is None:
            text += ", bias=False"
        if self.activation is not None:
            text += f", activation={self.activation!r}"
        return text
