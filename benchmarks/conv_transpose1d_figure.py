"""The figure of CSV files of conv_transpose1d.py: how many times as fast as cuDNN, by case. Needs matplotlib.

    python benchmarks/conv_transpose1d_figure.py benchmarks/results/conv_transpose1d_h200.csv [FILE...]

It is named after the first file, whose rows go before those of others.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

PANELS = ("forward", "backward")
MATHS = ("float32", "tf32", "bfloat16", "float16")
BAR = 0.8 / len(MATHS)


def main(paths: list[Path]) -> None:
    about = paths[0].read_text().partition("\n")[0]
    rows = []
    for path in paths:
        lines = [line for line in path.read_text().splitlines() if line[0] != "#"]
        rows += [row for row in csv.DictReader(lines) if row["who"] == "native"]
    cases = list(dict.fromkeys(row["case"] for row in rows))
    figure, axes = pyplot.subplots(1, len(PANELS), figsize=(14, 11), sharey=True, layout="constrained")
    for axis, panel in zip(axes, PANELS):
        for i, math in enumerate(MATHS):
            points = [row for row in rows if (row["pass"], row["math"]) == (panel, math)]
            places = [cases.index(row["case"]) + BAR * (i - (len(MATHS) - 1) / 2) for row in points]
            middle, low, high = ([float(row[f"speedup{which}"]) for row in points] for which in ("", "_p20", "_p80"))
            spread = [[m - a for m, a in zip(middle, low)], [b - m for m, b in zip(middle, high)]]
            axis.barh(places, middle, height=BAR, xerr=spread, color=f"C{i}", label=math)
        axis.axvline(1, color="black", linewidth=1)
        axis.set_xscale("log", base=2)
        axis.set_xlabel("times as fast as cuDNN, same math mode")
        axis.set_title(panel)
        axis.grid(alpha=0.3, axis="x")
    axes[0].set_yticks(range(len(cases)), cases)
    axes[0].invert_yaxis()
    axes[0].legend()
    figure.suptitle(f"conv_transpose1d, {about.removeprefix('# ')}")
    figure.savefig(paths[0].with_suffix(".png"), dpi=90)


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
