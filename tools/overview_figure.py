"""Draws docs/images/overview.png: normalised scores of the paper's methods in all published games.

They come from the reports in results/, with the paper's settings: python tools/overview_figure.py
"""

import csv
from collections import defaultdict
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("agg")
from matplotlib import pyplot as plt

from epcx.methods import PAPER
from epcx.reports.chart import label, palette
from epcx.reports.normalised import rescaled

ROOT = Path(__file__).parent.parent
GAMES = {
    "food-collection": "Food Collection",
    "adversarial-battle": "Adversarial Battle",
    "predator-prey": "Predator-prey",
    "grassland": "Grassland",
}
ENOUGH = 4  # methods at the largest population: between fewer, 0 and 1 say little
Scores = dict[str, dict[str, dict[str, float]]]  # by population, role and method


def read(game: str) -> tuple[Scores, Scores]:
    """Our mean rewards, and the paper's."""
    ours: Scores = defaultdict(lambda: defaultdict(dict))
    theirs: Scores = defaultdict(lambda: defaultdict(dict))
    for path in sorted((ROOT / "results" / game / "report" / "tables").glob("scores-*.csv")):
        for row in csv.DictReader(path.read_text().splitlines()):
            if row["method"] in PAPER and row["settings"] == "preset paper":
                ours[row["population"]][row["role"]][row["method"]] = float(row["mean"])
                theirs[row["population"]][row["role"]][row["method"]] = float(row["paper"])
    return ours, theirs


def trained_at_last(scores: Scores) -> int:
    """How many methods were trained at the largest population."""
    *_, roles = scores.values()
    return max(map(len, roles.values()))


def normalised(scores: Scores, method: str) -> list[float]:
    """At each population the mean over roles, where 0 is the lowest of all methods and 1 the
    highest."""
    return [
        float(np.mean([rescaled(rewards).get(method, np.nan) for rewards in roles.values()]))
        for roles in scores.values()
    ]


def main() -> None:
    scores = {game: read(game) for game in GAMES if (ROOT / "results" / game / "report").is_dir()}
    drawn = {game: both for game, both in scores.items() if trained_at_last(both[0]) >= ENOUGH}
    figure, axes = plt.subplots(1, len(drawn), figsize=(4 * len(drawn), 3.4), sharey=True)
    looks = palette(PAPER)
    for ax, (game, (ours, theirs)) in zip(axes, drawn.items(), strict=True):
        places = np.arange(len(ours))
        for method in PAPER:
            style = {"color": looks[method].colour, "marker": looks[method].marker}
            paper = normalised(theirs, method)
            ax.plot(places, paper, ls=":", lw=1, markerfacecolor="white", ms=5, **style)
            name = label(method)
            ax.plot(places, normalised(ours, method), lw=2, ms=7, label=name, **style)
        ax.set_title(GAMES[game], loc="left", fontweight="bold")
        ax.set_xticks(places, list(ours))
        ax.set_xlabel("agents")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("normalised score")
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="lower center", ncols=len(PAPER), frameon=False)
    figure.tight_layout(rect=(0, 0.09, 1, 1))
    figure.savefig(ROOT / "docs" / "images" / "overview.png", dpi=130)


if __name__ == "__main__":
    main()
