"""The tests of this folder need an NVIDIA GPU and a build with CUDA: they are collected only there, and said to be
left out elsewhere."""

import torch

collect_ignore_glob = [] if torch.cuda.is_available() else ["test_*.py"]


def pytest_report_header():
    return "GPU tests: " + (torch.cuda.get_device_name() if torch.cuda.is_available() else "not collected, no GPU")
