"""torch.distributed.nn.sequence_parallel_causal_conv1d over NCCL, against one process, to the bit."""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

import torch_overlay  # noqa: F401

LENGTHS = ((700, 300), (2, 5), (1, 0), (0, 4), (4099, 4096))


def check(rank: int, file: str, backend: str, device_type: str) -> None:
    device = torch.device(device_type, rank) if device_type == "cuda" else torch.device(device_type)
    if device_type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(backend, init_method=f"file://{file}", rank=rank, world_size=2)
    from torch.distributed.nn import sequence_parallel_causal_conv1d

    for lengths in LENGTHS:
        for dtype in (torch.float32, torch.bfloat16):
            torch.manual_seed(0)  # the same on both ranks
            made = [torch.randn(*s).to(device, dtype) for s in ((2, 12, sum(lengths)), (12, 4), (12,))]
            x, weight, bias = (a.requires_grad_() for a in made)
            grad = torch.randn(2, 12, sum(lengths)).to(device, dtype)
            whole = F.causal_conv1d(x, weight, bias, "silu")
            (expected_grad,) = torch.autograd.grad(whole, x, grad)

            start = sum(lengths[:rank])
            own = slice(start, start + lengths[rank])
            shard = x.detach()[..., own].clone().requires_grad_()
            out = sequence_parallel_causal_conv1d(shard, weight, bias, "silu")
            (shard_grad,) = torch.autograd.grad(out, shard, grad[..., own])
            assert torch.equal(out, whole[..., own]) and torch.equal(shard_grad, expected_grad[..., own])
    dist.barrier()
    dist.destroy_process_group()


def spawn(backend: str, device_type: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(check, (f"{folder}/store", backend, device_type), nprocs=2)


def test_two_gpus():
    spawn("nccl", "cuda")
