"""causal_conv1d of a sequence that is sharded over a process group: public in torch.distributed.nn."""

from typing import Callable, Optional, Union

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import Function, once_differentiable


@torch._disable_dynamo
def sequence_parallel_causal_conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    activation: Optional[str] = None,
    *,
    group: Optional["dist.ProcessGroup"] = None,
    initial_state: Optional[Tensor] = None,
    return_final_state: bool = False,
) -> Union[Tensor, tuple[Tensor, Optional[Tensor]]]:
    r"""Apply :func:`torch.nn.functional.causal_conv1d` to a sequence sharded over a process group.

    The sequence is the concatenation of the ranks' inputs along time, in the order of their ranks in
    :attr:`group`. Shards may differ in length, be shorter than :math:`W - 1`, or empty. Only the
    :math:`W - 1` inputs before a shard travel in the forward pass, and in the backward pass the
    :math:`W - 1` inputs after it with their gradients.

    The output and the gradients of :attr:`input` and :attr:`initial_state` are those of the whole
    sequence in one process, to the bit. The gradients of :attr:`weight` and :attr:`bias` are this
    shard's share: as for every replicated parameter, the caller sums them over the group.

    Every rank of the group makes this call, with the same :attr:`weight`, :attr:`bias` and options and
    with inputs of one dtype, :math:`B` and :math:`D`. If any rank runs the backward pass, every rank must.
    Packed sequences (``seq_idx``, ``cu_seqlens``) cannot be sharded this way. Under
    :func:`torch.compile` this is a graph break. The backward pass is not differentiable.

    Args:
        input: this rank's shard, :math:`(B, D, T)` or unbatched :math:`(D, T)`.
        weight: as for :func:`torch.nn.functional.causal_conv1d`; so are ``bias`` and ``activation``.

    Keyword args:
        group: the process group. Default: the default group.
        initial_state: on the first rank only, the :math:`W - 1` inputs before the whole sequence.
        return_final_state: whether to return the last :math:`W - 1` inputs of the whole sequence too.

    Returns:
        The output of this shard; with :attr:`return_final_state` a pair of it and, on the last rank,
        the final state (``None`` on the others).

    Raises:
        RuntimeError: if torch.distributed is not available or not initialized.
        ValueError: if this process is not in the group, or gives a state but is not its first rank.
        ValueError, TypeError: as :func:`torch.nn.functional.causal_conv1d`, before anything is sent.
    """
    name = "sequence_parallel_causal_conv1d()"
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(f"{name}: torch.distributed is not initialized; call init_process_group first")
    group = dist.group.WORLD if group is None else group
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise ValueError(f"{name}: this process, of global rank {dist.get_rank()}, is not in the group")
    if initial_state is not None and rank > 0:
        raise ValueError(f"{name}: expected initial_state on the first rank only, but got one on rank {rank}")
    _check(input, weight, bias, activation, initial_state)

    input, weight, bias, initial_state = _autocast(input, weight, bias, initial_state)
    unbatched = input.dim() == 2
    if unbatched:
        input = input.unsqueeze(0)
        initial_state = None if initial_state is None else initial_state.unsqueeze(0)
    if size == 1 or weight.size(-1) == 1 or input.size(0) * input.size(1) == 0:  # nothing travels
        output, final_state = F.causal_conv1d(
            input, weight, bias, activation, initial_state=initial_state, return_final_state=True
        )
    else:
        output, final_state = _SequenceParallelCausalConv1d.apply(
            input, weight, bias, initial_state, activation, group, return_final_state
        )
    if unbatched:
        output = output.squeeze(0)
        final_state = None if final_state is None else final_state.squeeze(0)
    if return_final_state:
        return output, final_state if rank == size - 1 else None
    return output


sequence_parallel_causal_conv1d.__module__ = "torch.distributed.nn"


def _check(input, weight, bias, activation, initial_state) -> None:
    """Raises what the operator raises, before a neighbor is left waiting."""
    meta = [None if tensor is None else tensor.detach().to("meta") for tensor in (input, weight, bias, initial_state)]
    torch.ops.aten.causal_conv1d(*meta[:3], activation, initial_state=meta[3])


def _autocast(*tensors: Optional[Tensor]) -> list[Optional[Tensor]]:
    """The casts that autocast makes for the operator, outside of the Function, which it does not see into."""
    device = tensors[0].device.type
    if not (torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)):
        return list(tensors)
    dtype = torch.get_autocast_dtype(device)
    return [t if t is None or t.dtype == torch.float64 else t.to(dtype) for t in tensors]


class _SequenceParallelCausalConv1d(Function):
    """Of [B, D, T] shards, on two ranks or more, with W > 1."""

    @staticmethod
    def forward(ctx, input, weight, bias, initial_state, activation, group, return_final_state):
        rank, last = dist.get_rank(group), dist.get_world_size(group) - 1
        width = weight.size(-1) - 1
        state = initial_state if rank == 0 else input.new_empty((*input.shape[:2], width))
        _relay(
            state if rank > 0 else None,
            lambda: _last(width, state, input).contiguous(),
            input.size(-1) >= width,
            source=rank - 1 if rank > 0 else None,
            destination=rank + 1 if rank < last else None,
            group=group,
        )
        output = torch.ops.aten.causal_conv1d(input, weight, bias, activation, initial_state=state)
        final_state = _last(width, state, input).clone() if return_final_state and rank == last else None

        ctx.save_for_backward(input, weight, bias, state)
        ctx.activation, ctx.group, ctx.return_final_state = activation, group, return_final_state
        ctx.set_materialize_grads(False)
        return output, final_state

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output, grad_final_state):
        input, weight, bias, state = ctx.saved_tensors
        rank, last = dist.get_rank(ctx.group), dist.get_world_size(ctx.group) - 1
        width, time = weight.size(-1) - 1, input.size(-1)
        if grad_output is None:
            grad_output = torch.zeros_like(input)

        following = _Following.nothing(input, width, ctx.return_final_state)
        if grad_final_state is not None:
            following.grad_final_state.copy_(grad_final_state)
        _relay(
            following.message if rank < last else None,
            lambda: following.prepend(input, grad_output).message,
            time >= width,
            source=rank + 1 if rank < last else None,
            destination=rank - 1 if rank > 0 else None,
            group=ctx.group,
        )

        # Right but for the last W-1 positions, whose inputs are taps of what follows.
        needed = list(ctx.needs_input_grad[:4])
        grad_input, grad_weight, grad_bias, grad_state = torch.ops.aten._causal_conv1d_backward(
            grad_output, grad_final_state, input, weight, bias, ctx.activation, state, None, None, needed
        )
        if rank < last and (needed[0] or needed[3]):
            before, end = following.gradients(input, grad_output, weight, bias, state, ctx.activation)
            if needed[0]:
                grad_input[..., time - end.size(-1) :] = end
            if needed[3] and time < width:
                grad_state = before
        return grad_input, grad_weight, grad_bias, grad_state, None, None, None


class _Following:
    """The first W-1 positions after a shard, in one message.

    Fewer than W-1 may be left in the sequence: `valid` tells, on the device, so that no length is
    exchanged. The gradient of the final state travels along, since short shards at the end all have
    a part in that state.
    """

    def __init__(self, message: Tensor, shape: tuple[int, int, int], with_state: bool):
        self.message, self.shape, self.with_state = message, shape, with_state
        size = shape[0] * shape[1] * shape[2]
        parts = message.split([size, size, size if with_state else 0, shape[2]])
        self.input, self.grad_output = parts[0].view(shape), parts[1].view(shape)
        self.grad_final_state = parts[2].view(shape) if with_state else None
        self.valid = parts[3]

    @classmethod
    def nothing(cls, like: Tensor, width: int, with_state: bool) -> "_Following":
        shape = (like.size(0), like.size(1), width)
        return cls(like.new_zeros((3 if with_state else 2) * shape[0] * shape[1] * width + width), shape, with_state)

    def prepend(self, input: Tensor, grad_output: Tensor) -> "_Following":
        """What follows the shard before."""
        result = self.nothing(input, self.shape[2], self.with_state)
        time, width = min(input.size(-1), self.shape[2]), self.shape[2]
        for whole, own, rest in (
            (result.input, input, self.input),
            (result.grad_output, grad_output, self.grad_output),
            (result.valid, input.new_ones(time), self.valid),
        ):
            whole[..., :time] = own[..., :time]
            whole[..., time:] = rest[..., : width - time]
        if self.with_state and time < width:  # else the final state has nothing from before this shard
            result.grad_final_state.copy_(self.grad_final_state)
        return result

    def gradients(
        self,
        input: Tensor,
        grad_output: Tensor,
        weight: Tensor,
        bias: Optional[Tensor],
        state: Optional[Tensor],
        activation: Optional[str],
    ) -> tuple[Tensor, Tensor]:
        """The gradients of the shard's last W-1 inputs (or all), and of the W-1 before those."""
        batch, _, width = self.shape
        time = min(input.size(-1), width)
        window = torch.cat([_last(width + time, state, input), self.input], -1)
        grad_window = torch.cat([torch.zeros_like(self.input), _end(time, grad_output), self.grad_output], -1)
        seq_idx = torch.cat([self.valid.new_ones(width + time), self.valid]).int() - 1
        grad = torch.ops.aten._causal_conv1d_backward(
            grad_window,
            self.grad_final_state,
            window,
            weight,
            bias,
            activation,
            None,
            seq_idx.expand(batch, -1),
            None,
            [True, False, False, False],
        )[0]
        return grad[..., :width], grad[..., width : width + time]


def _end(length: int, tensor: Tensor) -> Tensor:
    return tensor.narrow(-1, tensor.size(-1) - length, length)


def _last(length: int, state: Optional[Tensor], input: Tensor) -> Tensor:
    """The last positions of the input with those before it, which are 0 without a state."""
    missing = length - input.size(-1)
    if missing <= 0:
        return _end(length, input)
    before = input.new_zeros((*input.shape[:2], missing)) if state is None else _end(missing, state)
    return torch.cat([before, input], -1)


def _relay(
    received: Optional[Tensor],
    message: Callable[[], Tensor],
    ready: bool,
    *,
    source: Optional[int],
    destination: Optional[int],
    group: "dist.ProcessGroup",
) -> None:
    """Receives from one neighbor and sends to the other; a message that is not ready needs what is received.

    Always in batches: NCCL gives those and single operations different communicators. The first rank of
    the line only sends, so no rank waits in a circle.
    """

    def run(operations):
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()

    receive, send = [], []
    if source is not None:
        receive = [dist.P2POp(dist.irecv, received, dist.get_global_rank(group, source), group)]
    if not ready:
        run(receive)
        receive = []
    if destination is not None:
        send = [dist.P2POp(dist.isend, message(), dist.get_global_rank(group, destination), group)]
    run(receive + send)
