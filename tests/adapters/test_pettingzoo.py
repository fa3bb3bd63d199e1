"""Games as PettingZoo environments: PettingZoo's own tests, and results equal to the games'."""

import copy
import dataclasses
import importlib
import re
import subprocess
import sys
import warnings
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
import pytest
from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test
from pettingzoo.utils import parallel_to_aec

from epcx import games
from epcx.adapters import choose
from epcx.adapters.pettingzoo import parallel_env
from epcx.errors import InputError
from tests.games.ring import Ring
from tests.games.worlds import PARTICLE_GAMES

KINDS = ("discrete", "continuous")
AXES = {1: (0, 1), 2: (0, -1), 3: (1, 1), 4: (1, -1)}  # action: axis and direction


def sample_actions(env):
    return {name: env.action_space(name).sample() for name in env.agents}


def idle_actions(env):
    return dict.fromkeys(env.agents, 0)


@partial(jax.jit, static_argnums=0)
def step(game, world, weights):
    return game.step(jax.random.key(0), world, weights)


@partial(jax.jit, static_argnums=0)
def observe(game, world):
    return game.observe_flat(world)


def place_agents(env, **positions):
    """Moves agents to places, at rest; everybody else far from each other."""
    n = len(env.possible_agents)
    position = np.stack([np.linspace(-0.9, 0.9, n), np.full(n, 0.9)], 1).astype(np.float32)
    for name, place in positions.items():
        position[env.possible_agents.index(name)] = place
    env.world = dataclasses.replace(env.world, position=jax.numpy.asarray(position))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("game", PARTICLE_GAMES)
def test_environment_passes_the_tests_of_pettingzoo(game, kind):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel_api_test(parallel_env(game, actions=kind), num_cycles=100)
        parallel_seed_test(lambda: parallel_env(game, actions=kind))


@pytest.mark.parametrize("game", PARTICLE_GAMES)
def test_environment_in_turns_passes_the_tests_of_pettingzoo(game):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Advice that PettingZoo spares mpe2, whose observations are unbounded, too; and team1_0.
        warnings.filterwarnings("ignore", "Agent's (min|max)imum observation space value")
        warnings.filterwarnings("ignore", "We recommend agents to be named")
        api_test(parallel_to_aec(parallel_env(game)), num_cycles=100)
        seed_test(lambda: parallel_to_aec(parallel_env(game)), num_cycles=10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("game", PARTICLE_GAMES)
def test_seed_determines_the_episode_and_values_lie_in_their_spaces(game, kind):
    def play(seed):
        env = parallel_env(game, actions=kind)
        trace = [env.reset(seed=seed)]
        for i, name in enumerate(env.agents):
            env.action_space(name).seed(i)
        while env.agents:
            trace.append(env.step(sample_actions(env)))
            assert env.state_space.contains(env.state())
            assert all(
                env.observation_space(name).contains(view) for name, view in trace[-1][0].items()
            )
        return trace

    once, again, other = play(3), play(3), play(4)
    assert len(once) == len(again)
    jax.tree.map(np.testing.assert_array_equal, once, again)
    first = once[0][0]
    assert any((first[name] != other[0][0][name]).any() for name in first)


def test_reset_without_seed_continues_from_the_last_seed():
    env, twin, other = (parallel_env("grassland") for _ in range(3))

    def start(env, seed=None):
        env.reset(seed=seed)
        return env.state()

    assert (start(env, 5) == start(twin, 5)).all()
    first, second = start(env), start(env)
    assert (first != second).any()
    assert (first == start(twin)).all()
    assert (start(other) != first).any()  # never seeded: from the system's entropy


def test_agent_names_and_spaces():
    env = parallel_env("grassland", "3-2")
    assert env.possible_agents == ["sheep_0", "sheep_1", "sheep_2", "wolf_0", "wolf_1"]
    assert env.action_space("wolf_1").n == 5
    assert parallel_env("grassland", actions="continuous").action_space("wolf_1").shape == (5,)
    assert env.observation_space("sheep_0").shape == (env.game.flat_width,)
    assert parallel_env(games.make("grassland", "6-4")).max_num_agents == 10
    assert parallel_env("grassland", food=7).game.num_food == 7


def test_agents_leave_in_the_step_of_their_death():
    env = parallel_env("grassland", "3-2")
    env.reset(seed=0)
    place_agents(env, sheep_1=(0.0, 0.0), wolf_0=(0.0, 0.0))
    observations, rewards, terminations, truncations, infos = env.step(idle_actions(env))
    assert [name for name, over in terminations.items() if over] == ["sheep_1"]
    assert not any(truncations.values())
    assert set(observations) == set(rewards) == set(env.possible_agents)
    assert infos["sheep_1"]["reward"] == -5
    assert infos["wolf_0"] == infos["wolf_0"] | {"reward": 5.0, "killed": 1, "touched": 1, "ate": 0}
    assert env.agents == ["sheep_0", "sheep_2", "wolf_0", "wolf_1"]

    observations, *_ = env.step(idle_actions(env))
    assert set(observations) == set(env.agents)


def test_episode_ends_when_all_agents_are_done():
    env = parallel_env("grassland", "1-1")
    env.reset(seed=0)
    place_agents(env, sheep_0=(0.0, 0.0), wolf_0=(0.0, 0.0))
    _, _, terminations, truncations, _ = env.step(idle_actions(env))
    assert terminations == {"sheep_0": True, "wolf_0": True}
    assert not any(truncations.values())
    assert env.agents == []
    assert env.step({}) == ({}, {}, {}, {}, {})  # as SuperSuit does, and mpe2 answers
    with pytest.raises(InputError, match="call reset"):
        env.step({"sheep_0": 0})
    env.reset()
    assert env.agents == env.possible_agents


@pytest.mark.parametrize("horizon", [None, 7])
def test_time_limit_truncates(horizon):
    env = parallel_env("food-collection", horizon=horizon)
    env.reset(seed=0)
    limit = horizon or env.game.horizon
    for played in range(1, limit + 1):
        assert env.agents == env.possible_agents
        _, _, terminations, truncations, _ = env.step(idle_actions(env))
        assert not any(terminations.values())
        assert set(truncations.values()) == {played == limit}
    assert env.agents == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("game", PARTICLE_GAMES)
def test_step_equals_that_of_the_game(game, kind):
    env = parallel_env(game, actions=kind)
    plain = parallel_env(game, actions=kind, shaping=False)
    env.reset(seed=1)
    plain.reset(seed=1)
    while env.agents:
        actions = sample_actions(env)
        weights = np.zeros((env.game.num_agents, 5), np.float32)
        for name, action in actions.items():
            weights[env.possible_agents.index(name)] = (
                np.eye(5)[action] if kind == "discrete" else action
            )
        world, outcome = jax.device_get(step(env.game, env.world, weights))
        observations, rewards, terminations, _, infos = env.step(actions)
        _, task_rewards, *_ = plain.step(actions)
        np.testing.assert_allclose(env.world.position, world.position, atol=1e-6)
        views = observe(env.game, env.world)
        for name, info in infos.items():
            i = env.possible_agents.index(name)
            assert info["reward"] == task_rewards[name] == pytest.approx(float(outcome.reward[i]))
            assert info["shaping"] == pytest.approx(float(outcome.shaping[i]), abs=1e-5)
            assert rewards[name] == pytest.approx(info["reward"] + info["shaping"])
            assert terminations[name] is bool(outcome.done[i])
            np.testing.assert_allclose(observations[name], views[i], atol=1e-6)
            for event in ("ate", "killed", "touched"):
                assert info[event] == int(getattr(outcome.events, event)[i])
            assert all(type(value) in (int, float) for value in info.values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("action", range(5))
def test_actions_accelerate_along_their_axis(action, kind):
    env = parallel_env("food-collection", "3", actions=kind)
    env.reset(seed=0)
    place_agents(env, collector_0=(0.0, 0.0))
    chosen = dict.fromkeys(env.agents, 0 if kind == "discrete" else np.eye(5)[0])
    chosen["collector_0"] = action if kind == "discrete" else np.eye(5)[action]
    env.step(chosen)
    expected = np.zeros(2)
    if action in AXES:
        axis, direction = AXES[action]
        expected[axis] = direction
    speed = np.asarray(env.world.velocity[0])
    np.testing.assert_allclose(speed, expected * np.abs(speed).max(), atol=1e-6)
    np.testing.assert_array_equal(np.sign(speed.round(5)), expected)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("discrete", {"wolf_1": None}, "'wolf_1' is not a whole number from 0 to 4"),
        ("discrete", {"wolf_1": 5}, "action 5 of 'wolf_1' is not a whole number from 0 to 4"),
        ("discrete", {"wolf_1": -1}, "action -1 of 'wolf_1'"),
        ("discrete", {"wolf_1": 1.0}, "action 1.0 of 'wolf_1'"),
        ("discrete", {"wolf_1": np.array([1])}, "'wolf_1' is not a whole number"),
        ("discrete", {"dog_0": 1}, "agent 'dog_0' is not in grassland"),
        ("continuous", {"wolf_1": np.zeros(4)}, r"'wolf_1' has shape \(4,\)"),
        ("continuous", {"wolf_1": 3}, r"'wolf_1' has shape \(\)"),
        ("continuous", {"wolf_1": ["a"] * 5}, "it takes 5 numbers"),
        ("continuous", {"wolf_1": [0, np.nan, 0, 0, 0]}, "'wolf_1' is not between 0 and 1"),
        ("continuous", {"wolf_1": [0, np.inf, 0, 0, 0]}, "'wolf_1' is not between 0 and 1"),
        ("continuous", {"wolf_1": [0, 1e300, 0, 0, 0]}, "'wolf_1' is not between 0 and 1"),
        ("continuous", {"wolf_1": [0, -0.5, 0, 0, 0]}, "'wolf_1' is not between 0 and 1"),
    ],
)
def test_bad_actions_are_refused_and_leave_the_world_unchanged(kind, change, message):
    env = parallel_env("grassland", "3-2", actions=kind)
    env.reset(seed=0)
    place_agents(env, sheep_0=(0.0, 0.0), wolf_0=(0.0, 0.0))
    nothing = 0 if kind == "discrete" else np.eye(5)[0]
    env.step(dict.fromkeys(env.agents, nothing))  # sheep_0 dies
    before = env.state()
    with pytest.raises(InputError, match=message):
        env.step(dict.fromkeys(env.agents, nothing) | change)
    missing = dict.fromkeys(env.agents[:-1], nothing)
    with pytest.raises(InputError, match="agent 'wolf_1' has no action"):
        env.step(missing)
    np.testing.assert_array_equal(env.state(), before)


def test_actions_of_agents_that_left_are_ignored():
    """TorchRL hands over an action for every agent, always."""
    env, twin = parallel_env("grassland", "3-2"), parallel_env("grassland", "3-2")
    for each in (env, twin):
        each.reset(seed=0)
        place_agents(each, sheep_0=(0.0, 0.0), wolf_0=(0.0, 0.0))
        each.step(idle_actions(each))
    assert "sheep_0" not in env.agents
    found = env.step(idle_actions(env) | {"sheep_0": 7})
    jax.tree.map(np.testing.assert_array_equal, found, twin.step(idle_actions(twin)))
    np.testing.assert_array_equal(env.state(), twin.state())


def test_new_environment_can_be_played_in_a_forked_process():
    """SuperSuit forks; JAX hangs in the child if its parent has computed anything."""
    code = (
        "import multiprocessing, os; from epcx.adapters.pettingzoo import parallel_env;"
        "env = parallel_env('grassland', '3-2');"
        "child = multiprocessing.get_context('fork').Process(target=env.reset);"
        "child.start(); child.join(60); print(child.exitcode); child.kill()"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "0\n", result.stderr


def test_bad_arguments_are_refused():
    with pytest.raises(InputError, match="actions 'both' is unknown"):
        choose("grassland", None, "both", None, {})
    with pytest.raises(InputError, match="horizon 0 is too small"):
        parallel_env("grassland", horizon=0)
    with pytest.raises(InputError, match="unknown game 'chess'"):
        parallel_env("chess")
    with pytest.raises(InputError, match="ready game"):
        parallel_env(games.make("grassland"), "3-2")
    env = parallel_env("grassland")
    with pytest.raises(InputError, match="call reset"):
        env.step({})
    with pytest.raises(InputError, match="call reset"):
        env.state()
    for seed, fault in ((-1, "small"), (2**32, "large")):
        with pytest.raises(InputError, match=f"seed {seed} is too {fault}: a whole number"):
            env.reset(seed=seed)


def test_deep_copy_is_independent():
    env = parallel_env("grassland")
    observations, _ = env.reset(seed=0)
    observations["sheep_0"][:] = 0  # the user's own array
    twin = copy.deepcopy(env)
    before = env.state()
    after = twin.step(dict.fromkeys(twin.agents, 1))
    np.testing.assert_array_equal(env.state(), before)
    jax.tree.map(np.testing.assert_array_equal, env.step(dict.fromkeys(env.agents, 1)), after)


@pytest.mark.parametrize(
    ("adapter", "missing"),
    [("pettingzoo", "pettingzoo"), ("jaxmarl", "jaxmarl.environments.multi_agent_env")],
)
def test_missing_package_is_reported_with_its_install_command(adapter, missing, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, f"epcx.adapters.{adapter}", raising=False)
    with pytest.raises(ImportError, match=re.escape('pip install "epcx[adapters]"')):
        importlib.import_module(f"epcx.adapters.{adapter}")


def test_discrete_game_has_the_actions_of_each_role():
    env = parallel_env(Ring, "2-1")
    env.reset(seed=0)
    assert [env.action_space(name).n for name in env.agents] == [3, 3, 2]
    assert env.state().shape == (4,)  # three cells and the light
    with pytest.raises(InputError, match="action 2 of 'catcher_0' is not a whole number from 0 to"):
        env.step({"runner_0": 2, "runner_1": 2, "catcher_0": 2})
    with pytest.raises(InputError, match="actions of ring cannot be continuous: choose discrete"):
        parallel_env(Ring, "2-1", actions="continuous")


def test_discrete_game_passes_the_tests_of_pettingzoo():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel_api_test(parallel_env(Ring, "2-1"), num_cycles=20)
        parallel_seed_test(lambda: parallel_env(Ring, "2-1"))


class RingEvents(NamedTuple):
    distance: jax.Array
    total: jax.Array


class EndingRing(Ring):
    """The first runner is done after the first step; rewards tell whether actions are one-hot."""

    def step(self, key, world, actions):
        after, outcome = super().step(key, world, actions)
        one_hot = ((actions == 1).sum(1) == 1) & ((actions == 0).sum(1) == 2)
        reward = jax.numpy.full(3, 1.0 * one_hot.all())
        events = RingEvents(jax.numpy.array([0.5, 1.5, 2.0]), jax.numpy.array(4.0))
        done = outcome.done.at[0].set(True)
        return after, dataclasses.replace(outcome, reward=reward, done=done, events=events)


def test_discrete_game_gets_one_hot_actions_of_agents_that_left():
    env = parallel_env(EndingRing, "2-1", shaping=False)
    env.reset(seed=0)
    _, rewards, terminations, *_ = env.step(dict.fromkeys(env.agents, 1))
    assert terminations == {"runner_0": True, "runner_1": False, "catcher_0": False}
    assert set(rewards.values()) == {1.0}
    _, rewards, *_ = env.step(dict.fromkeys(env.agents, 1))
    assert rewards == {"runner_1": 1.0, "catcher_0": 1.0}


def test_infos_hold_the_events_that_are_a_number_per_agent():
    env = parallel_env(EndingRing, "2-1")
    _, infos = env.reset(seed=0)
    # SuperSuit would write those of the next reset over those of the last step.
    assert infos == {name: {} for name in env.agents}
    infos = env.step(dict.fromkeys(env.agents, 0))[-1]
    assert [infos[name]["distance"] for name in env.possible_agents] == [0.5, 1.5, 2.0]
    assert all("total" not in info for info in infos.values())
