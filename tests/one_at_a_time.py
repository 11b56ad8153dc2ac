"""The two halves of `make test` run beside each other, and share what is fetched."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from overlay.paths import BUILD

TEST_TREES = BUILD / "test-trees"


@contextmanager
def one_at_a_time() -> Iterator[None]:
    TEST_TREES.mkdir(parents=True, exist_ok=True)
    with (TEST_TREES / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
