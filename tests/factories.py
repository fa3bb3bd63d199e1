"""Runs with random agents and made-up curves in place of a training, and a recording callback."""

from dataclasses import replace

import jax
import numpy as np

from epcx.config import TrainConfig
from epcx.evolution.lineage import Lineage, Record, name_of
from epcx.runs import provenance
from epcx.runs.run import LINEAGE, RunFolder
from epcx.teams import weights_metadata


class RecordingCallback:
    """Keeps stages, their episodes and messages, and calls `on_report` at every progress."""

    def __init__(self, on_report=lambda: None):
        self.stages, self.totals, self.episodes, self.messages = [], [], [], []
        self.on_report = on_report

    def on_stage(self, stage, total):
        self.stages.append(stage)
        self.totals.append(total)

    def on_progress(self, episodes, rewards):
        self.episodes.append(episodes)
        self.on_report()

    def on_message(self, text):
        self.messages.append(text)


def make_run(
    path,
    game,
    method,
    population,
    seed=0,
    matches=None,
    snapshots=0,
    episodes=50,
    budget="lineage",
    density="paper",
    **settings,
):
    """A finished run; in every later stage of a curriculum the best set is that of match 1.

    `settings` are of the learner's config.
    """
    learner_config = TrainConfig(game, method).learner_config
    config = TrainConfig(
        game,
        method,
        population=tuple(population),
        episodes=episodes,
        stage_episodes=20,
        matches=matches,
        seed=seed,
        snapshots=snapshots,
        budget=budget,
        density=density,
        learner_config=replace(learner_config, **settings),
    )
    run = RunFolder.create(path, config.to_json(), provenance.describe())
    records, rows, before = [], [], 0
    number = 2 if config.grows else matches or 1
    for stage, played in enumerate(config.games):
        learner, name = config.make_learner(played), str(played.population)
        rng = np.random.default_rng([seed, stage])
        agents = jax.tree.map(
            lambda x, rng=rng: rng.normal(0, 0.3, (number, *x.shape)).astype(np.float32),
            jax.eval_shape(learner.init, jax.random.key(0)),
        )
        best = min(stage, 1) if config.grows else 0
        for role, members in played.members.items():
            metadata = weights_metadata(learner, role)
            for match in range(number):
                rank = (match - best) % number
                mine = jax.tree.map(lambda x, m=match, who=members: x[m, who], agents)
                run.save_agents(name, rank, role, mine, metadata)
                policies = learner.policies(mine)
                for moment in range(snapshots):
                    trained = before + 10 * moment
                    run.save_snapshot(name, trained, match, role, policies, metadata)
                parents = (name_of(role, stage - 1, 0), name_of(role, stage - 1, 1))
                records.append(
                    Record(
                        name_of(role, stage, match),
                        role,
                        stage,
                        name,
                        match,
                        parents=parents if stage else (),
                        fitness=10.0 - rank if config.selects else None,
                        rank=rank,
                    )
                )
        rows += [
            {
                "stage": stage,
                "population": name,
                "match": match,
                "episodes": before + 2 * line,
                **{f"reward/{role}": float(line + match) for role in played.members},
            }
            for match in range(number)
            for line in range(1, 11)
        ]
        before += config.episodes_at(stage)
    run.append_metrics(rows)
    run.write(LINEAGE, Lineage(tuple(records)).to_json())
    run.write_result(
        {
            "ended": "finished",
            "seconds": 61.0,
            "episodes_along_a_lineage": before,
            "episodes_in_total": number * before,
        }
    )
    run.unlock()
    return RunFolder.open(path)
