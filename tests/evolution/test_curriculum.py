"""Algorithm 1 around a trainer whose results are known, against results worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from epcx import games
from epcx.errors import InputError, RunError
from epcx.evolution.curriculum import (
    AgentSet,
    Curriculum,
    Generation,
    Mutants,
    Stage,
    evolve,
)
from epcx.evolution.lineage import Lineage, Record


class NumberTrainer:
    """Agents are numbers. Training adds 1 to an agent of match 0, 2 to one of match 1, and so on.

    An agent's reward is its number; those of the second role get what the first role loses.
    """

    def __init__(self, diverge=()):
        self.stages = []
        self.diverge = set(diverge)

    def fine_tune(self, stage, matches, key):
        number = len(matches) if matches else stage.matches
        agents = np.zeros((number, stage.game.num_agents))
        if matches:
            agents = np.stack([match["w"] for match in matches])
        self.stages.append((str(stage), agents.copy()))
        gains = 1.0 + np.arange(number)
        diverged = np.array([(stage.number, match) in self.diverge for match in range(number)])
        return Mutants({"w": agents + gains[:, None]}, diverged)

    def play(self, stage, teams, pairings, key):
        first, *others = stage.game.members.values()
        rewards = []
        for team in teams:
            reward = team["w"].copy()
            for other in others:
                reward[other] -= reward[first].mean()
            rewards.append(reward)
        return np.stack(rewards)


def make_curriculum(name, populations, sets, matches=None, first=None, rounds=None, seed=0):
    stages = tuple(
        Stage(i, games.make(name, population), matches if i else first or sets, 100)
        for i, population in enumerate(populations)
    )
    return Curriculum(stages, sets, seed, rounds)


def agents_of(generation, role):
    return [chosen.agents["w"].tolist() for chosen in generation.sets[role]]


def test_curriculum_of_one_role_equals_results_by_hand():
    """Three fresh matches become 1, 2 and 3; the best two are 3 and 2, joined in three ways."""
    trainer = NumberTrainer()
    kept = []
    curriculum = make_curriculum("food-collection", ["1", "2"], sets=2, first=3)
    last = evolve(curriculum, trainer, keep=lambda stage, generation: kept.append(generation))
    assert agents_of(kept[0], "collector") == [[3], [2]]
    np.testing.assert_array_equal(trainer.stages[1][1], [[3, 3], [3, 2], [2, 2]])
    # They become 4 4, 5 4 and 5 5.
    assert agents_of(last, "collector") == [[5, 5], [5, 4]]
    best, second = last.lineage.promoted(1, "collector")
    assert (best.name, best.fitness, best.rank) == ("collector-1.2", 5.0, 0)
    assert best.parents == ("collector-0.1", "collector-0.1")
    assert second.parents == ("collector-0.2", "collector-0.1")
    assert best.opponents == ()


def test_vanilla_curriculum_clones_its_single_set():
    trainer = NumberTrainer()
    evolve(make_curriculum("grassland", ["2-1", "4-2", "8-4"], sets=1), trainer)
    assert [stage for stage, _ in trainer.stages] == ["2-1", "4-2", "8-4"]
    assert [agents.shape for _, agents in trainer.stages] == [(1, 3), (1, 6), (1, 12)]
    assert trainer.stages[2][1].tolist() == [[2.0] * 12]


def test_fitness_is_the_mean_over_opponents_and_selection_is_per_role():
    trainer = NumberTrainer()
    last = evolve(make_curriculum("grassland", ["1-1"], sets=2, first=3), trainer)
    assert [s.record.match for s in last.sets["sheep"]] == [2, 1]
    wolves = {r.match: r.fitness for r in last.lineage.records if r.role == "wolf"}
    assert wolves == {0: 1.0 - 2.0, 1: 2.0 - 2.0, 2: 3.0 - 2.0}
    record = last.lineage.promoted(0, "wolf")[0]
    assert record.opponents == ("sheep-0.0", "sheep-0.1", "sheep-0.2")


def test_mixtures_of_all_roles_are_combined():
    trainer = NumberTrainer()
    evolve(make_curriculum("grassland", ["1-1", "2-2"], sets=2), trainer)
    sheep, wolves = np.split(trainer.stages[1][1], 2, 1)
    assert len(sheep) == 9
    assert {(*s, *w) for s, w in zip(sheep.tolist(), wolves.tolist(), strict=True)} == {
        (*s, *w) for s in ((2, 2), (2, 1), (1, 1)) for w in ((2, 2), (2, 1), (1, 1))
    }


def test_diverged_matches_are_neither_evaluated_nor_promoted():
    trainer = NumberTrainer(diverge=[(0, 2)])
    kept = []
    curriculum = make_curriculum("grassland", ["1-1", "2-2"], sets=2, first=3)
    evolve(curriculum, trainer, keep=lambda stage, generation: kept.append(generation))
    assert [s.record.match for s in kept[0].sets["sheep"]] == [1, 0]
    (lost,) = [r for r in kept[0].lineage.records if r.role == "sheep" and r.diverged]
    assert (lost.match, lost.fitness, lost.rank) == (2, None, None)
    assert kept[0].lineage.promoted(0, "wolf")[0].opponents == ("sheep-0.0", "sheep-0.1")


def test_fewer_sets_are_promoted_when_matches_diverged():
    trainer = NumberTrainer(diverge=[(0, 0), (0, 2)])
    last = evolve(make_curriculum("food-collection", ["1", "2"], sets=2, first=3), trainer)
    assert trainer.stages[1][1].tolist() == [[2.0, 2.0]]
    assert len(last.sets["collector"]) == 1


def test_run_error_when_all_matches_diverged():
    trainer = NumberTrainer(diverge=[(0, 0), (0, 1)])
    with pytest.raises(RunError, match="all 2 matches at 1 have diverged"):
        evolve(make_curriculum("food-collection", ["1", "2"], sets=2), trainer)


def test_run_error_when_no_fitness_is_finite():
    class NanTrainer(NumberTrainer):
        def play(self, stage, teams, pairings, key):
            return super().play(stage, teams, pairings, key) * np.nan

    with pytest.raises(RunError, match="no set of collector at 1 has a finite fitness"):
        evolve(make_curriculum("food-collection", ["1"], sets=2), NanTrainer())


def test_all_matches_are_kept_without_evolution():
    curriculum = replace(make_curriculum("grassland", ["1-1"], sets=3), sets=None)
    last = evolve(curriculum, NumberTrainer())
    assert agents_of(last, "sheep") == agents_of(last, "wolf") == [[1], [2], [3]]
    assert all(r.fitness is None and r.opponents == () for r in last.lineage.records)


def test_evolve_continues_from_an_earlier_generation():
    curriculum = make_curriculum("food-collection", ["1", "2", "4"], sets=2, matches=2)
    kept = []
    whole = evolve(
        curriculum, NumberTrainer(), keep=lambda stage, generation: kept.append(generation)
    )
    again = evolve(curriculum, NumberTrainer(), begin=kept[0])
    assert again.lineage == whole.lineage
    assert agents_of(again, "collector") == agents_of(whole, "collector")


def test_roles_may_grow_by_different_factors():
    """Two sheep become six, of three parents; two wolves become three, of two parents."""
    trainer = NumberTrainer()
    evolve(make_curriculum("grassland", ["2-2", "6-3"], sets=2), trainer)
    assert trainer.stages[1][1].shape == (4 * 3, 9)
    sheep, wolves = np.split(trainer.stages[1][1], [6], 1)
    assert {tuple(row) for row in sheep[:, ::2].tolist()} == {
        (2, 2, 2),
        (2, 2, 1),
        (2, 1, 1),
        (1, 1, 1),
    }
    assert {tuple(row) for row in wolves.tolist()} == {(2, 2, 2), (2, 2, 1), (1, 1, 1)}


def test_fitness_rounds_limit_the_opponents_of_a_set():
    curriculum = make_curriculum("grassland", ["1-1"], sets=2, first=4, rounds=3)
    records = evolve(curriculum, NumberTrainer()).lineage.records
    assert [len(set(record.opponents)) for record in records] == [3] * 8


def test_first_stage_from_another_run_repeats_its_mixtures():
    """As many matches as the stage asks for, although one set allows a single mixture."""
    record = Record("collector-init.0", "collector", -1, "1", 0, rank=0)
    begin = Generation({"collector": [AgentSet(record, {"w": np.array([7.0])})]})
    begin = replace(begin, lineage=Lineage((record,)))
    trainer = NumberTrainer()
    last = evolve(make_curriculum("food-collection", ["2"], sets=2, first=3), trainer, begin)
    assert trainer.stages[0][1].tolist() == [[7, 7]] * 3
    assert agents_of(last, "collector") == [[10, 10], [9, 9]]
    assert {parent for r in last.lineage.records for parent in r.parents} == {"collector-init.0"}


def test_seed_determines_the_sampled_mixtures():
    def mixtures(seed):
        trainer = NumberTrainer()
        curriculum = make_curriculum("grassland", ["1-1", "2-2"], 3, matches=5, seed=seed)
        evolve(curriculum, trainer)
        return trainer.stages[1][1].tolist()

    assert mixtures(0) == mixtures(0)
    assert mixtures(0) != mixtures(1)


def test_lineage_round_trips_through_json():
    last = evolve(make_curriculum("grassland", ["1-1", "2-2"], sets=2), NumberTrainer())
    assert Lineage.from_json(last.lineage.to_json()) == last.lineage
    for damaged in ({}, [{}], [1], [{"name": "x"}]):
        with pytest.raises(InputError, match="damaged"):
            Lineage.from_json(damaged)
