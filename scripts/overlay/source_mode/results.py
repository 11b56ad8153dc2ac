"""Results of a suite, and how they differ from those of the unpatched PyTorch.

Only what did not simply pass is kept, so a recorded baseline is small: baselines/<version>.json.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

BASELINES = Path(__file__).with_name("baselines")

FAILED, PASSED, SKIPPED, EXPECTED = "failed", "passed", "skipped", "expected failure"


@dataclass(frozen=True)
class Results:
    """Of one test file. Tests are named Class.test."""

    passed: int = 0
    skipped: int = 0
    failed: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()  # failed, as they are expected to

    def describe(self) -> str:
        counts = {
            "passed": self.passed,
            "failed": len(self.failed),
            "expected failures": len(self.expected),
            "skipped": self.skipped,
        }
        return ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "no test"


@dataclass(frozen=True)
class Baseline:
    """What the unpatched PyTorch gave, and how."""

    version: str
    date: str
    build: str  # whose it was
    switches: dict[str, str]
    files: dict[str, Results] = field(default_factory=dict)


def read_outcomes(path: Path) -> Results:
    """What pytest_outcomes.py has written."""
    outcomes: dict[str, str] = {}
    for line in path.read_text().splitlines():
        nodeid, outcome = json.loads(line)
        file, *classes, name = nodeid.split("::", 2)
        outcomes[f"{classes[-1] if classes else Path(file).stem}.{name}"] = outcome
    names = {kind: tuple(sorted(name for name in outcomes if outcomes[name] == kind)) for kind in (FAILED, EXPECTED)}
    counts = list(outcomes.values())
    return Results(counts.count(PASSED), counts.count(SKIPPED), names[FAILED], names[EXPECTED])


def compare(now: Results, before: Results | None) -> list[str]:
    """The differences that say something of the patches, a line each; without a baseline every failure is one."""
    before = before or Results()
    gone = set(before.expected) - set(now.expected)
    lines = [f"new failure: {name}" for name in now.failed if name not in {*before.failed, *before.expected}]
    lines += [f"unexpected success: {name}" for name in now.failed if name in before.expected]
    lines += [f"fixed: {name}" for name in before.failed if name not in now.failed]
    lines += [f"no longer fails as expected: {name}" for name in sorted(gone - set(now.failed))]
    return lines


def new_failures(lines: list[str]) -> int:
    return sum(line.startswith(("new failure", "unexpected success")) for line in lines)


def load_baseline(version: str, folder: Path = BASELINES) -> Baseline | None:
    path = folder / f"{version}.json"
    if not path.is_file():
        return None
    content = json.loads(path.read_text())
    files = {
        name: Results(item["passed"], item["skipped"], tuple(item["failed"]), tuple(item["expected"]))
        for name, item in content.pop("files").items()
    }
    return Baseline(**content, files=files)


def save_baseline(baseline: Baseline, folder: Path = BASELINES) -> Path:
    path = folder / f"{baseline.version}.json"
    folder.mkdir(exist_ok=True)
    path.write_text(json.dumps(asdict(baseline), indent=1) + "\n")
    return path
