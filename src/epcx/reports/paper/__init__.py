"""The numbers of the EPC paper (ICLR 2020), from its appendix, and its methods as it shows them."""

import csv
from importlib import resources

from epcx.evaluation.results import Place

LABELS = {  # in the order of the paper's tables
    "maddpg": "MADDPG",
    "mean-field": "mean-field",
    "att-maddpg": "Att-MADDPG",
    "vanilla-pc": "vanilla-PC",
    "epc": "EPC",
}
# Colours of Okabe and Ito, which the colour-blind can tell apart, markers and dashes.
LOOKS: dict[str, tuple[str, str, tuple[float, ...]]] = {
    "maddpg": ("#cc79a7", "D", (1.4, 1.2)),
    "mean-field": ("#56b4e9", "v", (6.0, 1.4, 1.0, 1.4, 1.0, 1.4)),
    "att-maddpg": ("#009e73", "^", (3.0, 1.2, 1.0, 1.2)),
    "vanilla-pc": ("#0072b2", "s", (5.0, 1.6)),
    "epc": ("#d55e00", "o", ()),
}
OPPONENT = "epc"  # the method that all others play against in its tables
BASELINE = "maddpg"  # that it shows against itself, beside EPC
# Adversarial Battle is reported as team 1, and is the average of both (appendix, Evaluation).
TABLES = {
    "grassland": ("grassland_vs_epc", {}),
    "adversarial-battle": ("adversarial_battle_vs_epc", {"team1": "team1 and team2"}),
    "predator-prey": ("predator_prey_vs_epc", {}),
    "food-collection": ("food_collection", {"reward": "collector", "coverage": "collector"}),
}
STATISTICS = ("reward", "coverage")
CROSSPLAY = {
    ("grassland", "24-16", "sheep"): "crossplay_grassland_24-16_sheep",
    ("grassland", "24-16", "wolf"): "crossplay_grassland_24-16_wolf",
    ("adversarial-battle", "16-16", "team1"): "crossplay_adversarial_battle_16-16",
    ("predator-prey", "12-8", "predator"): "crossplay_predator_prey_12-8",
}


def scores(game: str, statistic: str = "reward") -> dict[Place, dict[str, float]]:
    """By population and role, then by method: raw rewards against EPC, or final coverages."""
    if game not in TABLES:
        return {}
    name, roles = TABLES[game]
    found = {}
    for row in read_table(name):
        row_name, scale = row.pop("side", None) or row.pop("measure"), row.pop("scale")
        if (row_name if row_name in STATISTICS else "reward") == statistic:
            values = {method: float(value) for method, value in row.items()}
            found[scale, roles.get(row_name, row_name)] = values
    return found


def crossplay(game: str, population: str, role: str) -> dict[str, dict[str, float]]:
    """Rewards of the role by its method, then by the opponents' method; empty if not published."""
    name = CROSSPLAY.get((game, population, role))
    if name is None:
        return {}
    table = {}
    for row in read_table(name):
        (_, method), *cells = row.items()
        table[method] = {opponent: float(value) for opponent, value in cells}
    return table


def read_table(name: str) -> list[dict[str, str]]:
    text = resources.files(__package__).joinpath(f"{name}.csv").read_text()
    return list(csv.DictReader(text.splitlines()))
