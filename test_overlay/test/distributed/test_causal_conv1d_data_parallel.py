# Owner(s): ["oncall: distributed"]
"""nn.CausalConv1d in DistributedDataParallel and both kinds of FSDP."""

import copy
import importlib.util

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.testing._internal.common_distributed import MultiProcessTestCase
from torch.testing._internal.common_utils import run_tests


# Beside an installed torch, each process that a test starts loads the operator itself.
if importlib.util.find_spec("torch_overlay"):
    import torch_overlay  # noqa: F401

B, D, T, W = 4, 6, 10, 4


class TestCausalConv1dDataParallel(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def test_data_parallel(self):
        """All in one test: to start the processes takes longer than what they do."""
        torch.set_num_threads(1)
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
        self.check(self.ddp)
        self.check(self.fsdp)
        if hasattr(torch.cpu.Stream, "record_event"):  # else fully_shard() does not work on the CPU yet
            self.check(self.fully_shard)
        dist.barrier()
        dist.destroy_process_group()

    def ddp(self, model):
        model = nn.parallel.DistributedDataParallel(model)
        return model, lambda: [p.detach() for p in model.parameters()]

    def fsdp(self, model):
        policy = ModuleWrapPolicy({nn.CausalConv1d})
        model = FSDP(model, auto_wrap_policy=policy, device_id=torch.device("cpu"), use_orig_params=True)
        self.assertIsInstance(model[0], FSDP)

        def parameters():
            with FSDP.summon_full_params(model):
                return [p.detach().clone() for p in model.parameters()]

        return model, parameters

    def fully_shard(self, model):
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (self.world_size,))
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model, lambda: [p.detach().full_tensor() for p in model.parameters()]

    def check(self, wrap):
        """Two steps on half of the batch each are those of one process."""
        torch.manual_seed(0)
        plain = nn.Sequential(nn.CausalConv1d(D, W, activation="silu"), nn.CausalConv1d(D, W))
        input = torch.randn(B, D, T)
        model, parameters = wrap(copy.deepcopy(plain))
        for net, batch in ((plain, input), (model, input.chunk(self.world_size)[self.rank])):
            optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
            for _ in range(2):
                optimizer.zero_grad()
                net(batch).square().mean().backward()
                optimizer.step()
        for actual, expected in zip(parameters(), plain.parameters(), strict=True):
            self.assertEqual(actual, expected.detach())


if __name__ == "__main__":
    run_tests()
