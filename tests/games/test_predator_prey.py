"""Predator-prey against mpe2's `simple_tag` itself."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpe2 import simple_tag_v3

from epcx import games
from epcx.games import ParticleWorld

# mpe2's continuous actions are none, -x, +x, -y, +y; ours none, +x, -x, +y, -y.
TO_MPE2 = [0, 2, 1, 4, 3]


def play_mpe2(prey, predators, steps, seed, crowded):
    """Recorded worlds, actions, rewards and observations; prey first."""
    env = simple_tag_v3.parallel_env(
        num_good=prey, num_adversaries=predators, max_cycles=steps, continuous_actions=True
    )
    env.reset(seed=seed)
    world = env.unwrapped.world
    rng = np.random.default_rng(seed)
    order = [*range(predators, predators + prey), *range(predators)]
    agents = [world.agents[i] for i in order]
    record = {k: [] for k in ("before", "after", "action", "reward", "observation")}

    def snapshot():
        return [[a.state.p_pos.copy() for a in agents], [a.state.p_vel.copy() for a in agents]]

    drift = rng.dirichlet(np.ones(5), prey + predators).astype(np.float32)  # some leave the square
    for step in range(steps):
        if crowded and step % 4 == 0:
            for agent in agents:
                agent.state.p_pos = rng.uniform(-0.2, 0.2, 2)
                agent.state.p_vel = rng.normal(size=2)
        record["before"].append(snapshot())
        actions = 0.5 * drift + 0.5 * rng.dirichlet(np.ones(5), prey + predators).astype(np.float32)
        given = {a.name: x[TO_MPE2] for a, x in zip(agents, actions, strict=True)}
        observations, rewards, *_ = env.step(given)
        record["after"].append(snapshot())
        record["action"].append(actions)
        record["reward"].append([rewards[a.name] for a in agents])
        record["observation"].append([observations[a.name] for a in agents])
    obstacles = np.array([landmark.state.p_pos for landmark in world.landmarks])
    env.close()
    return record, obstacles


@pytest.mark.parametrize(
    ("population", "crowded"), [("1-3", False), ("3-2", True), ("3-2", False), ("12-8", True)]
)
def test_steps_equal_mpe2(population, crowded):
    game = games.make("predator-prey", population)
    prey, predators = game.population.counts
    steps = 60
    record, obstacles = play_mpe2(prey, predators, steps, seed=7, crowded=crowded)
    before, expected = (np.moveaxis(np.array(record[k]), 1, 0) for k in ("before", "after"))
    worlds = jax.vmap(ParticleWorld)(
        position=jnp.asarray(before[0], jnp.float32),
        velocity=jnp.asarray(before[1], jnp.float32),
        alive=jnp.ones((steps, game.num_agents), bool),
        food=jnp.zeros((steps, 0, 2)),
        time=jnp.arange(steps),
        obstacles=jnp.broadcast_to(jnp.asarray(obstacles, jnp.float32), (steps, 2, 2)),
    )
    keys = jax.random.split(jax.random.key(0), steps)
    after, outcome = jax.jit(jax.vmap(game.step))(keys, worlds, jnp.asarray(record["action"]))

    np.testing.assert_allclose(after.position, expected[0], atol=1e-4, rtol=0)
    np.testing.assert_allclose(after.velocity, expected[1], atol=1e-4, rtol=0)
    apart = np.linalg.norm(expected[0][:, :prey, None] - expected[0][:, None, prey:], axis=-1)
    clear = (np.abs(apart - 0.125) > 1e-5).all((1, 2))
    assert clear.mean() > 0.9
    total = np.asarray(outcome.reward + outcome.shaping)
    np.testing.assert_allclose(
        total[clear], np.array(record["reward"])[clear], atol=1e-4, rtol=1e-5
    )
    tagged = (apart < 0.125).sum((1, 2))
    np.testing.assert_array_equal(outcome.events.touched[clear, prey:].sum(1), tagged[clear])
    if crowded:
        assert tagged.sum() > 5

    flat = np.asarray(jax.jit(jax.vmap(game.observe_flat))(after))
    n = game.num_agents
    for agent in range(n):
        theirs = np.array([step[agent] for step in record["observation"]])
        np.testing.assert_allclose(
            in_mpe2_order(flat[:, agent], agent, prey, n, theirs.shape[1]), theirs, atol=1e-4
        )


def in_mpe2_order(flat, agent, prey, n, width):
    """Our flat vectors with the predators before the prey, and without the padding."""
    positions = flat[:, 8 : 8 + 2 * (n - 1)].reshape(len(flat), n - 1, 2)
    others = [j for j in range(n) if j != agent]
    adversaries_first = sorted(range(n - 1), key=lambda k: others[k] < prey)
    return np.concatenate(
        [
            flat[:, :8],
            positions[:, adversaries_first].reshape(len(flat), -1),
            flat[:, 8 + 2 * (n - 1) :],
        ],
        1,
    )[:, :width]


def test_flat_observations_of_prey_are_padded_with_zeros():
    game = games.make("predator-prey", "3-2")
    world = game.reset(jax.random.key(0))
    world = replace(world, velocity=world.velocity + 1.0)
    flat = np.asarray(game.observe_flat(world))
    assert (flat[:3, -2:] == 0).all()
    assert (flat[3:, -2:] == 1).all()


def test_number_of_obstacles_is_an_option():
    world = games.make("predator-prey", "3-2", obstacles=5).reset(jax.random.key(0))
    assert world.obstacles.shape == (5, 2)
    assert (np.abs(world.obstacles) <= 0.9).all()
