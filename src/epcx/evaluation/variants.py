"""What methods and trainings are called in a comparison."""

from collections.abc import Iterable, Sequence
from typing import get_args

from epcx import presets
from epcx.config import TrainConfig
from epcx.methods import DEFAULT_LEARNER, PAPER
from epcx.teams import RunPlayers

PAPER_SETTINGS = "preset paper"


def variant(config: TrainConfig, configs: Sequence[TrainConfig], with_settings: bool = True) -> str:
    """Its method, and in brackets what tells it from other trainings by that method.

    These are its learner, if that is not the paper's; its budget; its settings, if those of the
    comparison differ (the paper's need no name); and the schedule, if it is neither that of others
    with these settings nor its preset's.
    """
    named = presets.name_settings(config)
    details = [] if config.learner == DEFAULT_LEARNER else [config.learner]
    if config.budget == "total":
        details.append("total budget")
    several = len({presets.name_settings(other) for other in configs}) > 1
    if with_settings and several and named != PAPER_SETTINGS:
        details.append(named.removeprefix("preset "))
    mine = schedule(config)
    others = [schedule(other) for other in rivals(config, configs, named)]
    different = [name for name in mine if any(other.get(name) != mine[name] for other in others)]
    usual = schedule(of_preset(config, named))
    if any(mine[name] != usual.get(name) for name in different):
        details += [f"{name.replace('_', '-')} {mine[name]}" for name in different]
    return f"{config.method} ({', '.join(details)})" if details else config.method


def rivals(config: TrainConfig, configs: Sequence[TrainConfig], named: str) -> list[TrainConfig]:
    """Trainings that would have the same name if their schedules did not differ: among others,
    their settings are `named` alike."""
    return [
        other
        for other in configs
        if other.method == config.method
        and (other.learner, other.budget) == (config.learner, config.budget)
        and presets.name_settings(other) == named
        and (other.grows or other.population == config.population)
    ]


def of_preset(config: TrainConfig, named: str) -> TrainConfig:
    """A training by the same method with the schedule of a preset."""
    known = {f"preset {preset}": preset for preset in get_args(presets.Preset)}
    return presets.make_config(
        config.game,
        config.method,
        known.get(named, "paper"),
        config.population,
        config.budget,
        learner=config.learner,
    )


def schedule(config: TrainConfig) -> dict[str, str]:
    """How long and wide it trains, by option; not what makes a training one of many."""
    values = config.to_json() | {"population": " ".join(config.populations)}
    of_one = {"seed", "snapshots", "learner_config", "budget"}
    if not config.grows:
        of_one |= {"matches", "sets"}  # how many trainings share a run, or the budget
    return {name: str(value) for name, value in values.items() if name not in of_one}


def base(method: str) -> str:
    """The method of a variant."""
    return method.partition(" ")[0]


def in_order(names: Iterable[str]) -> list[str]:
    """As in the paper's tables (worst first), others last."""
    order = {method: place for place, method in enumerate(reversed(PAPER))}
    return sorted(names, key=lambda name: (order.get(base(name), len(order)), name))


def training_name(config: TrainConfig, trial: RunPlayers, number: int) -> str:
    """Where a training is found: its seed and, if it is one of several in a run, its match."""
    seed = f"seed {config.seed}"
    if config.selects or number == 1:
        return seed
    return f"{seed} match {trial.origin(next(iter(config.games[0].members)))}"


def summarise_trainings(names: Iterable[str]) -> str:
    """Such as "seeds 0-2; seed 0 matches 0-2"."""
    seeds: set[int] = set()
    matches: dict[int, set[int]] = {}
    for name in names:
        _, seed, *match = name.split()
        if match:
            matches.setdefault(int(seed), set()).add(int(match[1]))
        else:
            seeds.add(int(seed))
    parts = [count_up("seed", "seeds", seeds)] if seeds else []
    parts += [
        f"seed {seed} " + count_up("match", "matches", matches[seed]) for seed in sorted(matches)
    ]
    return "; ".join(parts)


def count_up(one: str, many: str, numbers: Iterable[int]) -> str:
    """Such as "seeds 0-2, 5"."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][-1] + 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    shown = [f"{span[0]}-{span[-1]}" if len(span) > 1 else str(span[0]) for span in spans]
    several = len(spans) > 1 or len(spans[0]) > 1
    return f"{many if several else one} {', '.join(shown)}"
