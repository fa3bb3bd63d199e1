"""Algorithm 1 around a trainer that does what it is told."""

from dataclasses import replace

import numpy as np
import pytest

from epcx import games
from epcx.errors import InputError, RunError
from epcx.evolution.curriculum import Curriculum, Mutants, Stage, evolve
from epcx.evolution.lineage import Lineage


class Scripted:
    """Agents are numbers. Training adds 1 to an agent of match 0, 2 to one of match 1, and so on.

    An agent's reward is its number; those of the second role get what the first role loses.
    """

    def __init__(self, diverge=()):
        self.asked = []
        self.diverge = set(diverge)

    def fine_tune(self, stage, matches, key):
        number = len(matches) if matches else stage.matches
        agents = np.zeros((number, stage.game.num_agents))
        if matches:
            agents = np.stack([match["w"] for match in matches])
        self.asked.append((str(stage), agents.copy()))
        gains = 1.0 + np.arange(number)
        diverged = np.array([(stage.number, match) in self.diverge for match in range(number)])
        return Mutants({"w": agents + gains[:, None]}, diverged)

    def play(self, stage, teams, games, key):
        first, *others = stage.game.members.values()
        rewards = []
        for team in teams:
            reward = team["w"].copy()
            for other in others:
                reward[other] -= reward[first].mean()
            rewards.append(reward)
        return np.stack(rewards)


def curriculum(name, populations, sets, matches=None, first=None, rounds=None, seed=0):
    stages = tuple(
        Stage(i, games.make(name, population), matches if i else first or sets, 100)
        for i, population in enumerate(populations)
    )
    return Curriculum(stages, sets, seed, rounds)


def values(generation, role):
    return [chosen.agents["w"].tolist() for chosen in generation.sets[role]]


def test_one_role_by_hand():
    """Three fresh matches become 1, 2 and 3; the best two are 3 and 2, joined in three ways."""
    trainer = Scripted()
    kept = []
    plan = curriculum("food-collection", ["1", "2"], sets=2, first=3)
    last = evolve(plan, trainer, keep=lambda stage, generation: kept.append(generation))
    assert values(kept[0], "collector") == [[3], [2]]
    np.testing.assert_array_equal(trainer.asked[1][1], [[3, 3], [3, 2], [2, 2]])
    # They become 4 4, 5 4 and 5 5.
    assert values(last, "collector") == [[5, 5], [5, 4]]
    best, second = last.lineage.promoted(1, "collector")
    assert (best.name, best.fitness, best.rank) == ("collector-1.2", 5.0, 0)
    assert best.parents == ("collector-0.1", "collector-0.1")
    assert second.parents == ("collector-0.2", "collector-0.1")
    assert best.opponents == ()


def test_vanilla_curriculum_is_the_same_with_one_set():
    trainer = Scripted()
    evolve(curriculum("grassland", ["2-1", "4-2", "8-4"], sets=1), trainer)
    assert [stage for stage, _ in trainer.asked] == ["2-1", "4-2", "8-4"]
    assert [agents.shape for _, agents in trainer.asked] == [(1, 3), (1, 6), (1, 12)]
    assert trainer.asked[2][1].tolist() == [[2.0] * 12]


def test_selection_is_per_role():
    """Fitness of a set is its mean over games against all sets of the other role."""
    trainer = Scripted()
    last = evolve(curriculum("grassland", ["1-1"], sets=2, first=3), trainer)
    assert [s.record.match for s in last.sets["sheep"]] == [2, 1]
    wolves = {r.match: r.fitness for r in last.lineage.records if r.role == "wolf"}
    assert wolves == {0: 1.0 - 2.0, 1: 2.0 - 2.0, 2: 3.0 - 2.0}
    record = last.lineage.promoted(0, "wolf")[0]
    assert record.opponents == ("sheep-0.0", "sheep-0.1", "sheep-0.2")


def test_roles_are_mixed_across():
    trainer = Scripted()
    evolve(curriculum("grassland", ["1-1", "2-2"], sets=2), trainer)
    sheep, wolves = np.split(trainer.asked[1][1], 2, 1)
    assert len(sheep) == 9
    assert {(*s, *w) for s, w in zip(sheep.tolist(), wolves.tolist(), strict=True)} == {
        (*s, *w) for s in ((2, 2), (2, 1), (1, 1)) for w in ((2, 2), (2, 1), (1, 1))
    }


def test_matches_that_diverged_neither_play_nor_go_on():
    trainer = Scripted(diverge=[(0, 2)])
    kept = []
    plan = curriculum("grassland", ["1-1", "2-2"], sets=2, first=3)
    evolve(plan, trainer, keep=lambda stage, generation: kept.append(generation))
    assert [s.record.match for s in kept[0].sets["sheep"]] == [1, 0]
    (lost,) = [r for r in kept[0].lineage.records if r.role == "sheep" and r.diverged]
    assert (lost.match, lost.fitness, lost.rank) == (2, None, None)
    assert kept[0].lineage.promoted(0, "wolf")[0].opponents == ("sheep-0.0", "sheep-0.1")


def test_fewer_sets_go_on_where_most_diverged():
    trainer = Scripted(diverge=[(0, 0), (0, 2)])
    last = evolve(curriculum("food-collection", ["1", "2"], sets=2, first=3), trainer)
    assert trainer.asked[1][1].tolist() == [[2.0, 2.0]]
    assert len(last.sets["collector"]) == 1


def test_where_all_diverged_the_cause_is_named():
    trainer = Scripted(diverge=[(0, 0), (0, 1)])
    with pytest.raises(RunError, match="all 2 matches at 1 have diverged"):
        evolve(curriculum("food-collection", ["1", "2"], sets=2), trainer)


def test_rewards_that_are_not_finite_are_no_fitness():
    class Poisoned(Scripted):
        def play(self, stage, teams, games, key):
            return super().play(stage, teams, games, key) * np.nan

    with pytest.raises(RunError, match="no set of collector at 1 has a finite fitness"):
        evolve(curriculum("food-collection", ["1"], sets=2), Poisoned())


def test_without_evolution_all_matches_are_kept_in_order():
    plan = replace(curriculum("grassland", ["1-1"], sets=3), sets=None)
    last = evolve(plan, Scripted())
    assert values(last, "sheep") == values(last, "wolf") == [[1], [2], [3]]
    assert all(r.fitness is None and r.opponents == () for r in last.lineage.records)


def test_a_later_stage_goes_on_from_what_was_kept():
    plan = curriculum("food-collection", ["1", "2", "4"], sets=2, matches=2)
    kept = []
    whole = evolve(plan, Scripted(), keep=lambda stage, generation: kept.append(generation))
    again = evolve(plan, Scripted(), begin=kept[0])
    assert again.lineage == whole.lineage
    assert values(again, "collector") == values(whole, "collector")


def test_any_growth_and_uneven_growth():
    """Three times as many sheep, half as many wolves more: 2 become 3, of two parents."""
    trainer = Scripted()
    evolve(curriculum("grassland", ["2-2", "6-3"], sets=2), trainer)
    assert trainer.asked[1][1].shape == (4 * 3, 9)


def test_the_seed_decides_which_mixtures_are_tried():
    def mixtures(seed):
        trainer = Scripted()
        plan = curriculum("grassland", ["1-1", "2-2"], 3, matches=5, seed=seed)
        evolve(plan, trainer)
        return trainer.asked[1][1].tolist()

    assert mixtures(0) == mixtures(0)
    assert mixtures(0) != mixtures(1)


def test_a_lineage_comes_back_from_json():
    last = evolve(curriculum("grassland", ["1-1", "2-2"], sets=2), Scripted())
    assert Lineage.from_json(last.lineage.to_json()) == last.lineage
    for damaged in ({}, [{}], [1], [{"name": "x"}]):
        with pytest.raises(InputError, match="damaged"):
            Lineage.from_json(damaged)
