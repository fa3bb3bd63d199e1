"""Games as JaxMARL environments: driven by its wrappers, and results equal to the games'."""

import dataclasses
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epcx.adapters.jaxmarl import JaxMARLGame
from epcx.errors import InputError
from tests.games.ring import Ring

from jaxmarl.wrappers.baselines import CTRolloutManager, LogWrapper  # isort: skip


def make_key(seed):
    return jax.random.key(seed, impl="unsafe_rbg")  # compiles in half of the time


def sample_actions(env, key):
    """A random action for each agent: all action spaces are the same."""
    space = env.action_space(env.agents[0])
    actions = jax.vmap(space.sample)(jax.random.split(key, len(env.agents)))
    return dict(zip(env.agents, actions, strict=True))


def rollout(env, key, steps):
    """Transitions [steps, ...], played as JaxMARL's baselines do."""

    def step(carry, key):
        _, state = carry
        act, play = jax.random.split(key)
        observations, state, rewards, dones, infos = env.step(play, state, sample_actions(env, act))
        return (observations, state), (observations, state, rewards, dones, infos)

    return jax.lax.scan(step, env.reset(key), jax.random.split(key, steps))[1]


@pytest.mark.parametrize(
    ("game", "kind"), [("grassland", "discrete"), ("predator-prey", "continuous")]
)
def test_log_wrapper_logs_episodes_of_a_vmapped_scan(game, kind):
    worlds, steps = 16, 60
    env = LogWrapper(JaxMARLGame(game, actions=kind))
    keys = jax.random.split(make_key(0), worlds)
    observations, state, rewards, dones, infos = jax.jit(
        jax.vmap(lambda key: rollout(env, key, steps))
    )(keys)
    n = env.num_agents
    for name in env.agents:
        shape = env.observation_space(name).shape
        assert observations[name].shape == (worlds, steps, *shape)
        assert rewards[name].shape == dones[name].shape == (worlds, steps)
    # The baselines reshape every info to (worlds x agents).
    assert {x.shape for x in jax.tree.leaves(infos)} == {(worlds, steps, n)}

    # The world starts anew after a last step, and only then.
    over, time = np.asarray(dones["__all__"]), np.asarray(state.env_state.world.time)
    assert over.any(1).all()
    np.testing.assert_array_equal(time == 0, over)
    lengths = np.asarray(infos["returned_episode_lengths"])[over]
    assert lengths.max() == 25

    # The logged returns are the sums of the rewards.
    total = np.stack([np.asarray(rewards[name]) for name in env.agents], -1)
    end = over.argmax(1)
    for w in range(worlds):
        np.testing.assert_allclose(
            infos["returned_episode_returns"][w, end[w]],
            total[w, : end[w] + 1].sum(0),
            rtol=1e-4,
            atol=1e-4,
        )


def test_rollout_manager_of_the_q_learning_baselines_steps_a_batch():
    env = CTRolloutManager(JaxMARLGame("grassland", "3-2"), batch_size=4)
    observations, state = env.batch_reset(make_key(0))
    assert observations["__all__"].shape == (4, 5 * env.game.flat_width)
    actions = dict.fromkeys(env.agents, jnp.arange(4))
    _, state, rewards, _, _ = env.batch_step(make_key(2), state, actions)
    np.testing.assert_allclose(
        rewards["__all__"], sum(rewards[name] for name in env.agents), atol=1e-5
    )
    assert (state.step == 1).all()


@pytest.mark.parametrize(("kind", "shaping"), [("discrete", True), ("continuous", False)])
def test_step_equals_that_of_the_game(kind, shaping):
    env = JaxMARLGame("grassland", "3-2", actions=kind, shaping=shaping)
    game, key = env.game, make_key(3)
    _, state = env.reset(key)
    jax.tree.map(np.testing.assert_array_equal, state.world, jax.jit(game.reset)(key))
    actions = sample_actions(env, key)
    chosen = np.stack([actions[name] for name in env.agents])
    weights = np.eye(5, dtype=np.float32)[chosen] if kind == "discrete" else chosen

    @jax.jit
    def both(state, actions, weights):
        world, outcome = game.step(key, state.world, weights)
        return env.step_env(key, state, actions), world, outcome, game.observe_flat(world)

    ours, world, outcome, views = jax.device_get(both(state, actions, weights))
    observations, after, rewards, dones, infos = ours
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), after.world, world)
    expected = outcome.reward + outcome.shaping if shaping else outcome.reward
    for i, name in enumerate(env.agents):
        assert rewards[name] == pytest.approx(expected[i], abs=1e-6)
        assert dones[name] == outcome.done[i]
        np.testing.assert_allclose(observations[name], views[i], atol=1e-6)
    assert not dones["__all__"]
    np.testing.assert_allclose(infos["reward"], outcome.reward, atol=1e-6)
    np.testing.assert_array_equal(infos["touched"], outcome.events.touched)


def test_actions_may_be_arrays_of_one_number():
    env = JaxMARLGame("grassland", "3-2")
    _, state = env.reset(make_key(0))
    actions = sample_actions(env, make_key(1))
    as_arrays = {name: jnp.atleast_1d(action) for name, action in actions.items()}
    expected, found = (env.step(make_key(2), state, x) for x in (actions, as_arrays))
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.fixture(scope="module")
def grassland():
    return JaxMARLGame("grassland", "3-2")


def state_with_caught(env, sheep, time=0):
    """A state in which a wolf stands on these sheep, and all others are far away."""
    _, state = env.reset(make_key(0))
    n = env.num_agents
    position = np.stack([np.linspace(-0.9, 0.9, n), np.full(n, 0.9)], 1).astype(np.float32)
    position[[*sheep, n - 1]] = 0.0
    world = dataclasses.replace(
        state.world, position=jnp.asarray(position), time=jnp.asarray(time, jnp.int32)
    )
    return state.replace(world=world, step=world.time)


def test_dead_agents_are_done_and_get_no_reward(grassland):
    idle = dict.fromkeys(grassland.agents, jnp.array(0))
    _, state, rewards, dones, _ = grassland.step(
        make_key(1), state_with_caught(grassland, [1]), idle
    )
    assert [name for name in grassland.agents if dones[name]] == ["sheep_1"]
    assert not dones["__all__"]
    assert rewards["sheep_1"] < -4

    place = state.world.position[1]
    actions = idle | {"sheep_1": jnp.array(1)}
    _, state, rewards, dones, _ = grassland.step(make_key(1), state, actions)
    assert dones["sheep_1"]
    assert rewards["sheep_1"] == 0
    np.testing.assert_array_equal(state.world.position[1], place)


@pytest.mark.parametrize(
    ("sheep", "time", "truncated"),
    [([0, 1, 2], 0, 0), ([0, 1, 2], 24, 0), ([], 24, 5), ([1], 24, 4), ([1], 23, None)],
)
def test_episode_ends_when_all_are_done_or_at_the_time_limit(grassland, sheep, time, truncated):
    idle = dict.fromkeys(grassland.agents, jnp.array(0))
    state = state_with_caught(grassland, sheep, time)
    _, state, _, dones, infos = grassland.step(make_key(1), state, idle)
    over = truncated is not None
    assert dones["__all__"] == over
    assert all(dones.values()) == over
    assert infos["truncated"].sum() == (truncated or 0)
    assert state.world.time == (0 if over else time + 1)
    assert state.world.alive.all() == over


def test_agent_classes_name_and_available_actions(grassland):
    assert grassland.agent_classes == {
        "sheep": ["sheep_0", "sheep_1", "sheep_2"],
        "wolf": ["wolf_0", "wolf_1"],
    }
    assert grassland.name == "grassland"
    _, state = grassland.reset(make_key(0))
    masks = grassland.get_avail_actions(state)
    assert all(masks[name].shape == (5,) and masks[name].all() for name in grassland.agents)
    with pytest.raises(InputError, match="horizon 0 is too small"):
        JaxMARLGame("grassland", horizon=0)


def test_discrete_game_has_the_actions_of_each_role():
    env = JaxMARLGame(Ring, "2-1", shaping=False)
    assert [env.action_space(name).n for name in env.agents] == [3, 3, 2]
    _, state = env.reset(make_key(0))
    masks = env.get_avail_actions(state)
    np.testing.assert_array_equal([masks[name] for name in env.agents], env.game.action_mask)
    with pytest.raises(InputError, match="actions of ring cannot be continuous: choose discrete"):
        JaxMARLGame(Ring, "2-1", actions="continuous")


def test_discrete_game_steps_until_its_horizon():
    """Runners go forward and back, the catcher stays."""
    env = JaxMARLGame(Ring, "2-1")
    _, state = env.reset(make_key(0))
    actions = dict(zip(env.agents, jnp.array([1, 2, 0]), strict=True))
    step = jax.jit(env.step_env)
    for time in range(env.game.horizon):
        before = state.world["cell"]
        observations, state, _, dones, infos = step(make_key(time), state, actions)
        moved = (np.asarray(state.world["cell"]) - np.asarray(before)) % 8
        np.testing.assert_array_equal(moved, [1, 7, 0])
        assert dones["__all__"] == (time == env.game.horizon - 1)
    flat = env.game.observe_flat(state.world)
    np.testing.assert_array_equal([observations[name] for name in env.agents], flat)
    assert infos["truncated"].all()
    assert infos.keys() == {"reward", "shaping", "truncated"}


def test_import_prints_nothing_and_keeps_the_standard_streams():
    code = (
        "import io, sys; out, err = sys.stdout, sys.stderr = io.StringIO(), io.StringIO();"
        "import epcx.adapters.jaxmarl;"
        "sys.exit(not (sys.stdout is out and sys.stderr is err and out.getvalue() == ''))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0
    assert result.stdout == ""
