"""How much of the machine a build may take. Standard library only, as `make doctor` needs it."""

from __future__ import annotations

import os
import re
from pathlib import Path

MEMORY_PER_JOB = 3 << 29  # 1.5 GiB; the most that a compiler was seen to take is 1.0


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory() -> int:
    """In bytes. What the kernel would free for us (its file cache, for one) counts as available."""
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    meminfo, limit = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")
    if meminfo.is_file():
        available = int(re.search(r"^MemAvailable:\s+(\d+)", meminfo.read_text(), re.MULTILINE)[1]) << 10
    if limit.is_file() and limit.read_text().strip().isdigit():  # a container's; else "max"
        available = min(available, int(limit.read_text()))
    return available


def compile_jobs() -> int:
    """MAX_JOBS, or as many as there are cores, but no more than fit into memory."""
    wanted = int(os.environ.get("MAX_JOBS") or cores())
    return max(1, min(wanted, available_memory() // MEMORY_PER_JOB))
