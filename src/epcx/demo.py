"""The demo: a small curriculum on a CPU, beside training from scratch with as many episodes."""

from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import jax

from epcx import presets, trained, trainer
from epcx.engines.arena import Arena
from epcx.evaluation.evaluate import summarise
from epcx.interrupts import Interrupts
from epcx.runs.run import Run

GAME = "food-collection"
SCRATCH = "att-maddpg"
SEEDS = 2  # matches from scratch
EPISODES = 2_000  # of evaluation


@dataclass(frozen=True)
class Comparison:
    """Mean rewards per agent and final coverages at one population."""

    population: str
    episodes: int  # that each method has had, along a lineage
    reward: dict[str, float]  # by method
    coverage: dict[str, float]


def train_all(
    folder: Path, preset: presets.Preset, watcher: trainer.Watcher, interrupts: Interrupts
) -> dict[str, Run]:
    """The curriculum, and a run from scratch for each of its populations, by their names.

    What is there already is used, and what was interrupted goes on.
    """
    curriculum = presets.make(GAME, "epc", preset)
    asked = {"epc": curriculum} | {
        f"{SCRATCH}-{population}": replace(
            presets.make(GAME, SCRATCH, preset, (population,)), matches=SEEDS
        )
        for population in curriculum.population
    }
    runs = {}
    for name, training in asked.items():
        path = folder / name
        watcher.say(f"{training.method} at {' '.join(training.population)}: {path}")
        if path.exists():
            runs[name] = trainer.resume(path, watcher, interrupts)
        else:
            runs[name] = trainer.train(training, path, False, watcher, interrupts)
    return runs


def compare(runs: dict[str, Run]) -> list[Comparison]:
    """The best set of the curriculum beside the mean of those from scratch, at every population."""
    rows, episodes = [], 0
    for stage in runs["epc"].result["stages"]:
        population = stage["population"]
        episodes += stage["episodes"]
        learner = trained.learner_of(runs["epc"], population)
        arena = Arena(learner.game, learner.act)
        scratch = runs[f"{SCRATCH}-{population}"]
        teams = {"epc": [trained.load_agents(runs["epc"], learner, population, 0)]}
        teams[SCRATCH] = [
            trained.load_agents(scratch, learner, population, match)
            for match in trained.matches_of(scratch, population)
        ]
        played = arena.play(chain(*teams.values()), jax.random.key(0), EPISODES)
        scores = [summarise(learner.game, counts)["collector"] for counts in played]
        shares = {"epc": scores[:1], SCRATCH: scores[1:]}
        rows.append(
            Comparison(population, episodes, means(shares, "reward"), means(shares, "coverage"))
        )
    return rows


def means(scores: dict[str, list[Any]], statistic: str) -> dict[str, float]:
    return {
        method: sum(score[statistic]["mean"] for score in mine) / len(mine)
        for method, mine in scores.items()
    }
