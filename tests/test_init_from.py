"""Trainings that start from the agents of another run."""

import dataclasses

import jax
import numpy as np
import pytest

import epcx
from epcx.config import TrainConfig
from epcx.errors import InputError
from epcx.execution.local import LocalExecutor
from epcx.learners import MADDPGConfig
from epcx.publish import publish
from epcx.runs.run import RunFolder
from epcx.runs.weights import read
from epcx.teams import initial_generation
from epcx.trainer import train
from tests.factories import make_run

TINY = MADDPGConfig(batch_size=32, buffer_size=400, num_envs=4, learning_starts=100)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of EPC at 1 and 2 collectors, its published copy, and runs that do not fit."""
    folder = tmp_path_factory.mktemp("runs")
    full = make_run(folder / "full", "food-collection", "epc", ("1", "2"), matches=None)
    publish(full, folder / "published", sets=1)
    make_run(folder / "sheep", "grassland", "epc", ("1-1",), matches=None)
    make_run(folder / "mlp", "food-collection", "maddpg", ("2",))
    return folder


def config(init_from, population=("2", "4"), **settings):
    return TrainConfig(
        "food-collection",
        population=population,
        init_from=str(init_from),
        episodes=60,
        stage_episodes=60,
        matches=2,
        fitness_episodes=20,
        learner_config=TINY,
        **settings,
    )


def generation(wanted):
    messages = []
    return initial_generation(wanted, messages.append), messages


def test_agents_of_a_run_are_taken_over_with_critics_and_targets(runs):
    found, messages = generation(config(runs / "full"))
    assert messages == []
    assert [s.record.name for s in found.sets["collector"]] == [
        "collector-init.0",
        "collector-init.1",
    ]
    _, saved = read(RunFolder.open(runs / "full").weights("2", 0, "collector"))
    mine = found.sets["collector"][0].agents
    np.testing.assert_array_equal(mine.critic.queries[0].weight, saved["critic.queries.0.weight"])
    np.testing.assert_array_equal(
        mine.target_policy.head.layers[0].weight, saved["target_policy.head.layers.0.weight"]
    )


def test_published_policies_get_fresh_critics_and_a_message(runs):
    found, messages = generation(config(f"{runs / 'published'}@1", ("2", "4")))
    assert messages == [
        f"{runs / 'published'}@1 has policies only: the rest of its agents starts afresh"
    ]
    (only,) = found.sets["collector"]
    _, saved = read(RunFolder.open(runs / "published").weights("1", 0, "collector"))
    for policy in (only.agents.policy, only.agents.target_policy):
        np.testing.assert_array_equal(
            policy.head.layers[0].weight, saved["policy.head.layers.0.weight"]
        )
    np.testing.assert_array_equal(
        only.agents.critic.queries[0].weight, only.agents.target_critic.queries[0].weight
    )
    assert np.abs(only.agents.critic.queries[0].weight).max() > 0


def test_first_stage_has_as_many_matches_as_asked_although_there_is_one_set(runs, tmp_path):
    """All of them start from the same agents, learn from other episodes, and are selected from."""
    wanted = config(f"{runs / 'published'}@1", ("2",), initial_matches=2)
    run = train(wanted, tmp_path / "run", LocalExecutor())
    records = epcx.Run(run.path).lineage().records
    first = [record for record in records if record.stage == 0]
    assert [record.parents for record in first] == [("collector-init.0", "collector-init.0")] * 2
    weights = [read(run.weights("2", rank, "collector"))[1] for rank in (0, 1)]
    assert any((weights[0][name] != weights[1][name]).any() for name in weights[0])


def test_interrupted_training_resumes_without_the_run_it_started_from(runs, tmp_path):
    gone = tmp_path / "gone"
    make_run(gone, "food-collection", "mean-field", ("1",))
    wanted = TrainConfig(
        "food-collection",
        "mean-field",
        population=("1",),
        init_from=str(gone),
        episodes=60,
        learner_config=dataclasses.replace(TINY, network="mean-field"),
    )

    class Stop(epcx.NullCallback):
        def on_progress(self, episodes, rewards):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(wanted, tmp_path / "run", LocalExecutor(), Stop(), checkpoint_seconds=0.0)
    gone.rename(tmp_path / "elsewhere")
    run = epcx.resume(tmp_path / "run", callback=epcx.NullCallback())
    assert run.result["ended"] == "finished"


@pytest.mark.parametrize(
    ("source", "settings", "complaint"),
    [
        ("nowhere", {}, "nowhere is not a run"),
        ("full@9", {}, "stage '9' is not in"),
        ("sheep", {}, "has game grassland, not food-collection"),
        ("mlp", {}, "has networks mlp, not attention"),
        ("full@2", {"population": ("1",)}, "has agents of 2, which cannot become 1"),
        (
            "mlp",
            {
                "method": "maddpg",
                "population": ("4",),
                "sets": 1,
                "learner_config": MADDPGConfig(network="mlp"),
            },
            "has agents of 2, which cannot become 4",
        ),
    ],
)
def test_runs_that_cannot_be_started_from_are_refused_in_one_sentence(
    runs, source, settings, complaint
):
    wanted = TrainConfig(
        "food-collection",
        **{"population": ("2", "4"), "init_from": str(runs / source), **settings},
    )
    with pytest.raises(InputError, match=complaint) as refused:
        generation(wanted)
    assert "\n" not in str(refused.value)


def test_no_run_folder_is_made_when_the_source_does_not_fit(runs, tmp_path):
    with pytest.raises(InputError):
        train(config(runs / "sheep"), tmp_path / "run", LocalExecutor())
    assert not (tmp_path / "run").exists()


def test_key_of_fresh_critics_is_the_seed(runs):
    critics = [
        generation(config(runs / "published", seed=seed))[0].sets["collector"][0].agents.critic
        for seed in (0, 0, 1)
    ]
    same, other = (
        jax.tree.map(lambda a, b: bool((a == b).all()), critics[0], critic)
        for critic in critics[1:]
    )
    assert all(jax.tree.leaves(same))
    assert not all(jax.tree.leaves(other))
