# implement the sharding rules of causal_conv1d for distributed tensor
#
# Rows of the batch and channels are independent: an input sharded on either needs no communication, with
# parameters replicated beside a sharded batch and sharded beside sharded channels. Anything else, such as
# an input sharded in time, is computed on whole tensors.

from typing import NamedTuple, Optional

import torch
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.distributed.tensor._op_schema import OpSchema, OutputSharding, RuntimeSchemaInfo
from torch.distributed.tensor._ops.utils import register_prop_rule
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard


aten = torch.ops.aten


class _Dims(NamedTuple):
    """Where a tensor is sharded when the work is divided by rows of the batch, or by channels."""

    by_batch: Placement
    by_channel: Placement

    def placement(self, division: Optional[str]) -> Placement:
        return Replicate() if division is None else getattr(self, division)


_PARAMETER = _Dims(Replicate(), Shard(0))
_PARAMETER_GRAD = _Dims(Partial(), Shard(0))
_ROWS = _Dims(Shard(0), Replicate())  # [B, T] or [B]
_WHOLE = _Dims(Replicate(), Replicate())


def _sequences(ndim: int) -> _Dims:
    """[B, D, T] or [B, D, W-1], or without B."""
    return _Dims(Shard(0), Shard(ndim - 2))


def _is_sharded(placement: Placement, dims: _Dims, division: str) -> bool:
    # Not a strided shard, whose pieces are others.
    wanted = getattr(dims, division)
    return type(placement) is Shard and placement.dim == wanted.dim


def _arguments(op_schema: OpSchema) -> dict[str, object]:
    names = [argument.name for argument in op_schema.op._schema.arguments]
    return {**dict.fromkeys(names), **dict(zip(names, op_schema.args_schema)), **op_schema.kwargs_schema}


def _sharding(
    op_schema: OpSchema,
    divisions: list[Optional[str]],
    dims: dict[str, _Dims],
    outputs: list[Optional[_Dims]],
    mutated: tuple[str, ...] = (),
) -> OutputSharding:
    """The outputs' placements for a division of the work on each mesh dimension, and what has to move for it."""
    arguments = _arguments(op_schema)
    mesh = arguments["input"].mesh

    def spec_of(dims: _Dims, tensor_meta=None) -> DTensorSpec:
        placements = tuple(dims.placement(division) for division in divisions)
        return DTensorSpec(mesh, placements, tensor_meta=tensor_meta)

    wanted = {
        name: spec_of(dims[name], spec.tensor_meta)
        for name, spec in arguments.items()
        if isinstance(spec, DTensorSpec)
    }
    moved = [name for name, spec in wanted.items() if spec.placements != arguments[name].placements]
    for name in moved:
        if name in op_schema.kwargs_schema or name in mutated:  # DTensor cannot redistribute these
            raise ValueError(
                f"{op_schema.op._schema.name}: expected {name} to be placed as {wanted[name].placements} beside an "
                f"input placed as {arguments['input'].placements}, but got {arguments[name].placements}; "
                "redistribute it first"
            )
    names = [argument.name for argument in op_schema.op._schema.arguments]
    args = tuple(wanted.get(name, value) for name, value in zip(names, op_schema.args_schema))
    specs = tuple(None if output is None else spec_of(output) for output in outputs)
    return OutputSharding(
        specs if len(specs) > 1 else specs[0],
        OpSchema(op_schema.op, args, op_schema.kwargs_schema) if moved else None,
        needs_redistribute=bool(moved),
    )


def _divisions(lead: DTensorSpec, dims: _Dims, weight: DTensorSpec, batched: bool) -> list[Optional[str]]:
    def division(placement: Placement, weight_placement: Placement) -> Optional[str]:
        if batched and _is_sharded(placement, dims, "by_batch"):
            return "by_batch"
        if _is_sharded(placement, dims, "by_channel"):
            return "by_channel"
        # A replicated tensor is divided without communication.
        if placement.is_replicate() and _is_sharded(weight_placement, _PARAMETER, "by_channel"):
            return "by_channel"
        return None

    return [division(*placements) for placements in zip(lead.placements, weight.placements)]


def _forward_dims(arguments: dict[str, object]) -> tuple[list[Optional[str]], dict[str, _Dims]]:
    spec, packed = arguments["input"], arguments["cu_seqlens"] is not None
    batched = spec.ndim == 3 and not packed
    dims = _sequences(spec.ndim)
    return _divisions(spec, dims, arguments["weight"], batched), {
        "input": dims,
        "weight": _PARAMETER,
        "bias": _PARAMETER,
        "initial_state": _sequences(3 if packed else spec.ndim),
        "seq_idx": _ROWS,
        "cu_seqlens": _WHOLE,
    }


@register_prop_rule(
    [aten.causal_conv1d.default, aten._causal_conv1d_with_state.default],
    schema_info=RuntimeSchemaInfo(static_kwargkey=["initial_state", "seq_idx", "cu_seqlens"]),
)
def causal_conv1d_rules(op_schema: OpSchema) -> OutputSharding:
    divisions, dims = _forward_dims(_arguments(op_schema))
    outputs = [dims["input"], dims["initial_state"]]
    return _sharding(op_schema, divisions, dims, outputs[: len(op_schema.op._schema.returns)])


@register_prop_rule(aten._causal_conv1d_backward.default, schema_info=RuntimeSchemaInfo(9, needs_pytree=True))
def causal_conv1d_backward_rules(op_schema: OpSchema) -> OutputSharding:
    arguments = _arguments(op_schema)
    divisions, dims = _forward_dims(arguments)
    gradients = {"input": dims["input"], "weight": _PARAMETER_GRAD, "bias": _PARAMETER_GRAD}
    gradients["initial_state"] = dims["initial_state"]
    outputs = [
        gradient if wanted and arguments[name] is not None else None
        for (name, gradient), wanted in zip(gradients.items(), arguments["output_mask"])
    ]
    dims |= {"grad_output": dims["input"], "grad_final_state": dims["initial_state"]}
    return _sharding(op_schema, divisions, dims, outputs)


@register_prop_rule(
    [aten.causal_conv1d_update.default, aten.causal_conv1d_update_functional.default],
    schema_info=RuntimeSchemaInfo(static_kwargkey=["state_indices", "cache_seqlens"]),
)
def causal_conv1d_update_rules(op_schema: OpSchema) -> OutputSharding:
    arguments = _arguments(op_schema)
    # The state stays where it is, and with state_indices any row of it may be needed.
    state = _sequences(3)
    divisions = _divisions(arguments["state"], state, arguments["weight"], arguments["state_indices"] is None)
    dims = {
        "input": _Dims(Shard(0), Shard(1)),
        "state": state,
        "weight": _PARAMETER,
        "bias": _PARAMETER,
        "state_indices": _WHOLE,
        "cache_seqlens": _ROWS,
    }
    outputs = [dims["input"], state]
    return _sharding(op_schema, divisions, dims, outputs[: len(op_schema.op._schema.returns)], mutated=("state",))
