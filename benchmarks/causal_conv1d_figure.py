"""The figure of a CSV file of causal_conv1d_gpu.py: time, GB/s and share of the copy over T. Needs matplotlib.

    python benchmarks/causal_conv1d_figure.py benchmarks/results/causal_conv1d_h200.csv
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

NAMES = ("overlay", "copy kernel", "causal-conv1d", "fla", "compile(shift)", "compile(pad)", "pad+conv1d")
PANELS = [(case, layout) for layout in ("[B, D, T]", "channels-last") for case in ("forward", "backward")]
QUANTITIES = (("ms", "ms"), ("GB/s", "GB/s"), ("of_copy", "% of the faster copy"))


def main(path: Path, dtype: str = "bfloat16") -> None:
    about, *lines = path.read_text().splitlines()
    rows = [row for row in csv.DictReader(line for line in lines if line[0] != "#") if row["dtype"] == dtype]
    figure, axes = pyplot.subplots(3, len(PANELS), figsize=(16, 10), sharex=True, layout="constrained")
    for column, (case, layout) in enumerate(PANELS):
        for name in NAMES:
            points = [r for r in rows if (r["case"], r["layout"], r["who"]) == (case, layout, name)]
            if not points:
                continue
            times = [int(r["T"]) for r in points]
            style = dict(color=f"C{NAMES.index(name)}", marker="o", markersize=4)
            if name == "copy kernel":
                style = dict(color="black", linestyle=":")
            for axis, (field, _) in zip(axes[:, column], QUANTITIES):
                scale = 100 if field == "of_copy" else 1
                axis.plot(times, [scale * float(r[field]) for r in points], label=name, **style)
        axes[0, column].set_title(f"{case}, {layout}")
        axes[0, column].set_yscale("log")
        axes[2, column].set_ylim(0, 110)
        axes[2, column].set_xlabel("T")
        axes[0, column].set_xscale("log", base=2)
        for axis in axes[:, column]:
            axis.grid(alpha=0.3)
    for axis, (_, label) in zip(axes[:, 0], QUANTITIES):
        axis.set_ylabel(label)
    figure.legend(*_legend(axes), loc="outside lower center", ncols=len(NAMES))
    figure.suptitle(f"causal_conv1d, {dtype}, {about.removeprefix('# ')}")
    figure.savefig(path.with_suffix(".png"), dpi=90)


def _legend(axes) -> tuple[list, list]:
    """The lines of all panels, each name once."""
    lines = {}
    for axis in axes.flat:
        for line, name in zip(*axis.get_legend_handles_labels()):
            lines.setdefault(name, line)
    return list(lines.values()), list(lines)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
