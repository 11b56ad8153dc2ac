"""ninja's output: all of it into a log, and one line with elapsed and remaining time for whoever waits."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable
from typing import TextIO

STATUS = "[%f/%t] "  # for NINJA_STATUS
_STEP = re.compile(r"\[(\d+)/(\d+)\] (.*)")
_FAILED = re.compile(r"FAILED: (?:\[.*?\] )?(\S+)")
_EVERY = 30.0  # seconds between lines where the output is no terminal
_ENOUGH = 20  # steps to estimate from


class Progress:
    """Follows one run. `failed`: the targets that failed; `messages`: what was printed for them."""

    def __init__(
        self, log: TextIO, output: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log, self._output, self._clock = log, sys.stdout if output is None else output, clock
        self._terminal = self._output.isatty()
        self._start = clock()
        self._shown = -_EVERY
        self.steps = self.total = 0
        self.failed: list[str] = []
        self.messages: list[str] = []

    def follow(self, lines: Iterable[str]) -> None:
        in_failure = False
        for line in lines:
            self._log.write(line)
            self._log.flush()
            if step := _STEP.match(line):
                in_failure = False
                self.steps, self.total = int(step[1]), int(step[2])
                self._show(step[3])
            elif failure := _FAILED.match(line):
                in_failure = True
                self.failed.append(failure[1])
            elif in_failure:
                self.messages.append(line)

    def finish(self) -> None:
        """Leaves the cursor on a line of its own."""
        if self._terminal and self.total:
            self._output.write("\n")
        self._output.flush()

    @property
    def elapsed(self) -> float:
        return self._clock() - self._start

    def _show(self, what: str) -> None:
        elapsed = self.elapsed
        done = self.steps == self.total
        if not self._terminal and elapsed - self._shown < _EVERY and not done:
            return
        self._shown = elapsed
        line = f"[{self.steps}/{self.total}] {clock_time(elapsed)} elapsed"
        if self.steps >= _ENOUGH:
            line += f", about {clock_time(elapsed / self.steps * (self.total - self.steps))} to go"
        if self._terminal:
            self._output.write(f"\r\033[K{line}  {what.split('/')[-1][:40]}")
        else:
            self._output.write(f"{line}\n")
        self._output.flush()


def clock_time(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
