"""The host side of causal_conv1d's Metal kernels, as its .mm has it, on top of compile_shader."""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import dataclass
from typing import Any

import torch

POSITIONS, LANES, STRETCH, CHANNELS = 4, 32, 2048, 8  # as in CausalConv1d.h
METAL_TYPE = {torch.float32: "float", torch.float16: "half", torch.bfloat16: "bfloat"}


class Strides(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("row", "channel", "time")]

    @classmethod
    def of(cls, tensor: torch.Tensor | None) -> Strides:
        return cls() if tensor is None else cls(*tensor.stride())


def _structure(strides: str, numbers: str, flags: str) -> type[ctypes.Structure]:
    fields: list[tuple[str, Any]] = [(name, Strides) for name in strides.split()]
    fields += [(name, ctypes.c_int64) for name in numbers.split()]
    fields += [(name, ctypes.c_bool) for name in flags.split()]
    return type("Params", (ctypes.Structure,), {"_fields_": fields})


Params = _structure(
    "input output grad_input initial_state final_state grad_initial_state",
    "weight_channel weight_tap bias_channel seq_idx_row seq_idx_time cu_seqlens_stride "
    "rows channels time width sequences",
    "silu wide_parameters wide_indices bias_given initial_state_given seq_idx_given cu_seqlens_given grad_output_given "
    "grad_final_state_given time_contiguous",
)
UpdateParams = _structure(
    "input state output",
    "weight_channel weight_tap bias_channel state_indices_stride cache_seqlens_stride "
    "channels time width states places",
    "silu wide_parameters wide_state_indices wide_cache_seqlens bias_given state_indices_given cache_seqlens_given",
)


def upload(params: ctypes.Structure) -> torch.Tensor:
    return torch.frombuffer(bytearray(params), dtype=torch.uint8).clone()


def given(tensor: torch.Tensor | None) -> torch.Tensor:
    return torch.empty(0) if tensor is None else tensor


@dataclass
class CausalConv1d:
    """A call of causal_conv1d in the form that its kernels compute in."""

    library: Any
    input: torch.Tensor  # [B, D, T]
    weight: torch.Tensor  # [D, W]
    bias: torch.Tensor | None = None
    silu: bool = False
    initial_state: torch.Tensor | None = None
    seq_idx: torch.Tensor | None = None
    cu_seqlens: torch.Tensor | None = None

    def _params(self, output: torch.Tensor, **strides: torch.Tensor | None) -> Any:
        rows, channels, time = self.input.shape
        indices = self.seq_idx if self.seq_idx is not None else self.cu_seqlens
        return Params(
            input=Strides.of(self.input),
            output=Strides.of(output),
            initial_state=Strides.of(self.initial_state),
            weight_channel=self.weight.stride(0),
            weight_tap=self.weight.stride(1),
            bias_channel=0 if self.bias is None else self.bias.stride(0),
            seq_idx_row=0 if self.seq_idx is None else self.seq_idx.stride(0),
            seq_idx_time=0 if self.seq_idx is None else self.seq_idx.stride(1),
            cu_seqlens_stride=0 if self.cu_seqlens is None else self.cu_seqlens.stride(0),
            rows=rows,
            channels=channels,
            time=time,
            width=self.weight.size(1),
            sequences=self.sequences,
            silu=self.silu,
            wide_parameters=self.weight.dtype == torch.float32,
            wide_indices=indices is not None and indices.dtype == torch.int64,
            bias_given=self.bias is not None,
            initial_state_given=self.initial_state is not None,
            seq_idx_given=self.seq_idx is not None,
            cu_seqlens_given=self.cu_seqlens is not None,
            time_contiguous=self.input.stride(2) == 1,
            **{name: Strides.of(tensor) for name, tensor in strides.items()},
        )

    @property
    def sequences(self) -> int:
        return self.input.size(0) if self.cu_seqlens is None else self.cu_seqlens.numel() - 1

    def _kernel(self, name: str) -> Any:
        return getattr(self.library, f"causal_conv1d_{name}_{METAL_TYPE[self.input.dtype]}")

    def _positions_grid(self) -> dict[str, list[int]]:
        rows, channels, time = self.input.shape
        blocks = -(-time // POSITIONS)
        if self.input.stride(2) == 1:
            return {"threads": [blocks, channels, rows], "group_size": [8, 4, 1]}
        return {"threads": [channels, blocks, rows], "group_size": [32, 2, 1]}

    def _states_grid(self) -> dict[str, list[int]]:
        return {"threads": [self.weight.size(1) - 1, self.input.size(1), self.sequences], "group_size": [4, 8, 1]}

    def _last(self, params: torch.Tensor) -> torch.Tensor:
        last = torch.empty(self.input.size(0), dtype=torch.int64)
        if self.seq_idx is not None:
            grid = {"threads": [32, self.input.size(0)], "group_size": [32, 1]}
            self.library.causal_conv1d_last(last, self.seq_idx, params, **grid)
        return last

    def _check(self, params: torch.Tensor) -> None:
        if self.cu_seqlens is not None:
            self.library.causal_conv1d_check_cu_seqlens(
                self.cu_seqlens, params, threads=self.cu_seqlens.numel(), group_size=64, error_buf_idx=2
            )

    def forward(self) -> torch.Tensor:
        output = torch.empty_like(self.input)
        params = upload(self._params(output))
        self._check(params)
        self._kernel("forward")(
            output, self.input, self.weight, given(self.bias), given(self.initial_state),
            given(self.seq_idx), given(self.cu_seqlens), params, **self._positions_grid(),
        )  # fmt: skip
        return output

    def final_state(self) -> torch.Tensor:
        state = self.input.new_empty(self.sequences, self.input.size(1), self.weight.size(1) - 1)
        params = upload(self._params(self.input, final_state=state))
        self._kernel("final_state")(
            state, self.input, given(self.initial_state), given(self.seq_idx), given(self.cu_seqlens),
            self._last(params), params, **self._states_grid(),
        )  # fmt: skip
        return state

    def backward(
        self, grad_output: torch.Tensor | None, grad_final_state: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        """The gradients of input, weight, bias and initial state."""
        grad_input = torch.empty_like(self.input)
        grad_state = None if self.initial_state is None else torch.empty_like(self.initial_state)
        params = self._params(
            self.input if grad_output is None else grad_output,
            grad_input=grad_input,
            final_state=grad_final_state,
            grad_initial_state=grad_state,
        )
        params.grad_output_given = grad_output is not None
        params.grad_final_state_given = grad_final_state is not None
        buffer = upload(params)
        last = self._last(buffer)
        sources = (
            given(grad_output), given(grad_final_state), self.input, self.weight, given(self.bias),
            given(self.initial_state), given(self.seq_idx), given(self.cu_seqlens), last, buffer,
        )  # fmt: skip
        self._kernel("backward_input")(grad_input, *sources, **self._positions_grid())
        if grad_state is not None:
            self._kernel("backward_initial_state")(grad_state, *sources, **self._states_grid())

        rows, channels, time = self.input.shape
        width = self.weight.size(1)
        count = rows * -(-time // STRETCH)
        partials = torch.empty(count, channels, width + 1)
        threads = LANES * CHANNELS
        self._kernel("backward_partials")(
            partials, given(grad_output), self.input, self.weight, given(self.bias), given(self.initial_state),
            given(self.seq_idx), given(self.cu_seqlens), buffer,
            threads=[count * threads, -(-channels // CHANNELS)], group_size=[threads, 1],
        )  # fmt: skip
        grad_weight = torch.empty(channels, width, dtype=self.weight.dtype)
        grad_bias = None if self.bias is None else torch.empty(channels, dtype=self.bias.dtype)
        self._kernel("backward_parameters")(
            grad_weight, given(grad_bias), partials, buffer, count, [True, grad_bias is not None],
            threads=[width + 1, channels], group_size=[4, 32],
        )  # fmt: skip
        return grad_input, grad_weight, grad_bias, grad_state


def update(
    library: Any,
    input: torch.Tensor,
    state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    silu: bool,
    state_indices: torch.Tensor | None,
    cache_seqlens: torch.Tensor | None,
) -> torch.Tensor:
    """causal_conv1d_update of an input [B, D, T]; the state changes in place."""
    output = torch.empty_like(input)
    params = UpdateParams(
        input=Strides.of(input),
        state=Strides.of(state),
        output=Strides.of(output),
        weight_channel=weight.stride(0),
        weight_tap=weight.stride(1),
        bias_channel=0 if bias is None else bias.stride(0),
        state_indices_stride=0 if state_indices is None else state_indices.stride(0),
        cache_seqlens_stride=0 if cache_seqlens is None else cache_seqlens.stride(0),
        channels=input.size(1),
        time=input.size(2),
        width=weight.size(1),
        states=state.size(0),
        places=state.size(2),
        silu=silu,
        wide_parameters=weight.dtype == torch.float32,
        wide_state_indices=state_indices is not None and state_indices.dtype == torch.int64,
        wide_cache_seqlens=cache_seqlens is not None and cache_seqlens.dtype == torch.int64,
        bias_given=bias is not None,
        state_indices_given=state_indices is not None,
        cache_seqlens_given=cache_seqlens is not None,
    )
    kernel = getattr(library, f"causal_conv1d_update_{METAL_TYPE[input.dtype]}")
    kernel(
        output, state, input, weight, given(bias), given(state_indices), given(cache_seqlens), upload(params),
        threads=[input.size(1), input.size(0)], group_size=[32, 1], error_buf_idx=8,
    )  # fmt: skip
    return output


def sparse_storage(elements: int) -> torch.Tensor:
    """float16 zeros of which the machine need not have as many: pages come as they are touched."""
    no_reserve = 0x4000  # mmap.MAP_NORESERVE, which not every Python names
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    return torch.frombuffer(mmap.mmap(-1, 2 * elements, flags=flags), dtype=torch.float16)
