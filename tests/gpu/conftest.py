"""The tests of this folder need an NVIDIA GPU and a build with CUDA, some of them two: they are collected only there,
and said to be left out elsewhere."""

import torch

GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
collect_ignore_glob = ["test_*.py"] if GPUS == 0 else ["test_*_nccl.py"] if GPUS == 1 else []


def pytest_report_header():
    return f"GPU tests: {GPUS} GPUs" + (f", {torch.cuda.get_device_name()}" if GPUS else "")
