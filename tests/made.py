"""Runs that look as if they had been trained: fresh agents, and curves made up."""

import jax
import numpy as np

from epcx.evolution.lineage import Record, name_of
from epcx.runs.run import LINEAGE, Run
from epcx.trained import about
from epcx.training import Training


def made_run(path, game, method, population, seed=0, matches=1, snapshots=0, episodes=50):
    """A finished run; in every later stage of a curriculum the best set is that of match 1."""
    training = Training(
        game,
        method,
        tuple(population),
        episodes,
        20,
        matches=matches,
        seed=seed,
        snapshots=snapshots,
    )
    run = Run.create(path, training.config())
    records, rows, begin = [], [], 0
    for stage, played in enumerate(training.games):
        learner = training.learner(played)
        number = 2 if training.grows else matches
        chance = np.random.default_rng([seed, stage])
        agents = jax.tree.map(
            lambda x, n=number, c=chance: c.normal(0, 0.3, (n, *x.shape)).astype(np.float32),
            jax.eval_shape(learner.init, jax.random.key(0)),
        )
        best = min(stage, 1) if training.grows else 0
        for role, members in played.members.items():
            for match in range(number):
                rank = (match - best) % number if training.grows else match
                mine = jax.tree.map(lambda x, m=match, who=members: x[m, who], agents)
                kind = about(learner, role)
                run.save_agents(str(played.population), rank, role, mine, kind)
                for moment in range(snapshots):
                    run.save_snapshot(
                        str(played.population),
                        begin + 10 * moment,
                        match,
                        role,
                        learner.policies(mine),
                        kind,
                    )
                parents = (name_of(role, stage - 1, 0), name_of(role, stage - 1, 1))
                records.append(
                    Record(
                        name_of(role, stage, match),
                        role,
                        stage,
                        str(played.population),
                        match,
                        parents if stage else (),
                        10.0 - rank if training.grows else None,
                        rank=rank,
                    )
                )
        for match in range(number):
            rows += [
                {
                    "stage": stage,
                    "population": str(played.population),
                    "match": match,
                    "episodes": begin + 2 * line,
                    **{f"reward/{role}": float(line + match) for role in played.members},
                }
                for line in range(1, 11)
            ]
        begin += training.episodes_at(stage)
    run.log(rows)
    run.write(LINEAGE, [vars(record) for record in records])
    run.finish(
        {
            "ended": "finished",
            "seconds": 61.0,
            "episodes_along_a_lineage": begin,
            "episodes_in_total": 2 * begin,
        }
    )
    run.release()
    return Run.open(path)
