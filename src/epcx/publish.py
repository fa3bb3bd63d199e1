"""A copy of a run for others: small, and with all that playing, comparing and reporting needs."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import jax

from epcx import games
from epcx.errors import whole_number
from epcx.runs.run import CONFIG, LINEAGE, Run
from epcx.runs.weights import load_weights, names_of
from epcx.study import finished
from epcx.trained import about


def publish(source: Run, folder: Path, sets: int | None = None, lines: int = 25) -> Run:
    """Without critics, snapshots and all but the best sets; with fewer lines of the log."""
    if sets is not None:
        whole_number("sets", sets, 1)
    whole_number("lines", lines, 1)
    training = finished(source)
    copy = Run.create(folder, source.config)
    copy.write(CONFIG, source.config)  # made with what it was trained with
    for population in source.stages():
        learner = training.learner(games.make(training.game, population))
        like = jax.eval_shape(learner.init, jax.random.key(0))
        for rank in range(min(source.ranks(population), sets or source.ranks(population))):
            for role in learner.game.members:
                path, kind = source.weights(population, rank, role), about(learner, role)
                policies = load_weights(path, like, kind, learner.policies)
                names = learner.policies(names_of(like))
                pairs = zip(jax.tree.leaves(names), jax.tree.leaves(policies), strict=True)
                copy.save_agents(population, rank, role, dict(pairs), kind)
    copy.write(LINEAGE, source.lineage())
    copy.log(list(thinned(source.metrics(), lines)))
    copy.finish(source.result)
    copy.release()
    (folder / "lock").unlink(missing_ok=True)
    return Run.open(folder)


def thinned(rows: list[dict[str, Any]], lines: int) -> Iterator[dict[str, Any]]:
    """So many lines for each match of each stage, or fewer; each is the mean of some."""
    of_a_match = sorted(rows, key=lambda row: (row.get("stage", 0), row["match"]))
    for _, group in groupby(of_a_match, key=lambda row: (row.get("stage", 0), row["match"])):
        mine = list(group)
        size = -(-len(mine) // lines)
        for end in range(len(mine), 0, -size)[::-1]:
            some = mine[max(0, end - size) : end]
            yield {name: mean([row.get(name) for row in some]) for name in some[-1]}


def mean(values: list[Any]) -> Any:
    """Of numbers that change from line to line; of others, such as counters, the last."""
    if isinstance(values[-1], float) and all(isinstance(value, float) for value in values):
        return sum(values) / len(values)
    return values[-1]
