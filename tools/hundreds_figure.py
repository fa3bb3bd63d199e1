"""Draws docs/images/hundreds.png: rewards and the cost of an update over the population.

They are in results/large: what `epcx crossplay --json` wrote, with players named by how they came
about, and the times of `benchmarks.scale`. To draw it: python tools/hundreds_figure.py
"""

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from epcx.games import Population

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "results" / "large"
COLOURS = {
    "grown": "#1f6f4a",
    "clones": "#e08e2b",
    "scripted": "#8a8f98",
    "from scratch": "#9a4fb0",
}
LABELS = {"clones": "clones of 24, 24-16"}


def crossplays(game: str) -> list[dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in FOLDER.glob(f"{game}-*.json")]
    return sorted(found, key=lambda games: Population.parse(games["population"]).total)


def scores(game: str, role: str, opponents: str) -> dict[str, list[tuple[int, float]]]:
    """Reward per member of a role against some opponents, by player: over the agents in total."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for games in crossplays(game):
        for pairing in games["pairings"]:
            players = pairing["players"]
            if any(players[other] != opponents for other in players if other != role):
                continue
            members = games["counts"][role] if len(players) > 1 else 1
            mean = pairing["roles"][role]["reward"]["mean"] / members
            agents = Population.parse(games["population"]).total
            lines.setdefault(players[role], []).append((agents, mean))
    return lines


def draw(axes: Axes, lines: dict[str, list[tuple[int, float]]], title: str, unit: str) -> None:
    for player in COLOURS:
        if points := lines.get(player):
            axes.plot(
                *zip(*points, strict=True),
                marker="o",
                color=COLOURS[player],
                label=LABELS.get(player, player),
            )
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_ylabel(unit)
    axes.legend(frameon=False, fontsize=8)


def shares(lines: dict[str, list[tuple[int, float]]]) -> dict[str, list[tuple[int, float]]]:
    """In per cent of the scripted optimum."""
    best = dict(lines["scripted"])
    others = {player: points for player, points in lines.items() if player != "scripted"}
    return {
        player: [(agents, 100 * mean / best[agents]) for agents, mean in points]
        for player, points in others.items()
    }


def main() -> None:
    figure, panels = plt.subplots(1, 4, figsize=(15, 3.6), constrained_layout=True)
    food = shares(scores("food-collection", "collector", ""))
    draw(panels[0], food, "Food Collection", "% of the scripted optimum")
    panels[0].set_ylim(80, 100)
    sheep = scores("grassland", "sheep", "scripted")
    draw(panels[1], sheep, "Grassland: sheep, scripted wolves", "reward per sheep")
    wolves = scores("grassland", "wolf", "scripted")
    draw(panels[2], wolves, "Grassland: wolves, scripted sheep", "reward per wolf")
    rows = json.loads((FOLDER / "scale.json").read_text())["rows"]
    for neighbours, colour in ((12, "#27568b"), (8, "#6aa5dd")):
        points = [(r["agents"], r["ms_per_update"]) for r in rows if r["neighbours"] == neighbours]
        panels[3].plot(
            *zip(*points, strict=True), marker="o", color=colour, label=f"{neighbours} neighbours"
        )
    panels[3].set_yscale("log")
    panels[3].set_yticks([5, 10, 20, 50], ["5", "10", "20", "50"])
    panels[3].yaxis.set_minor_locator(NullLocator())
    panels[3].set_title("MADDPG in Grassland, one match", fontsize=10, loc="left")
    panels[3].set_ylabel("ms per update, one H200")
    panels[3].legend(frameon=False, fontsize=8)
    for axes in panels:
        axes.set_xscale("log", base=2)
        axes.set_xticks([24, 40, 80, 160, 320, 640], ["24", "40", "80", "160", "320", "640"])
        axes.set_xlabel("agents")
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(ROOT / "docs" / "images" / "hundreds.png", dpi=110)


if __name__ == "__main__":
    main()
