"""A pytest plugin: each test's outcome is a line of a file as soon as it is known, and tests that have one do not run
again, so that an interrupted suite goes on where it was. It is copied beside the build; it imports nothing of ours."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

_FILE = Path(os.environ["OVERLAY_OUTCOMES"])
_outcomes: dict[str, str] = {}  # of tests that are running


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    known = {json.loads(line)[0] for line in _FILE.read_text().splitlines()}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in known])
    items[:] = [item for item in items if item.nodeid not in known]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _outcomes[report.nodeid] = "failed"  # an unexpected success among them
    elif report.skipped:
        _outcomes.setdefault(report.nodeid, "expected failure" if hasattr(report, "wasxfail") else "skipped")
    if report.when == "teardown":
        line = json.dumps([report.nodeid, _outcomes.pop(report.nodeid, "passed")])
        with _FILE.open("a") as file:
            file.write(f"{line}\n")
