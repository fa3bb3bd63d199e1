"""The physics by itself; the golden recordings test it inside the games."""

import jax.numpy as jnp
import numpy as np

from epcx.games import physics


def test_softplus_equals_numpy_logaddexp():
    x = np.linspace(-40, 40, 20001)
    ours = physics.softplus(jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(ours, np.logaddexp(0, x), atol=1e-5, rtol=2e-7)


def test_contact_forces_are_zero_at_a_distance():
    bodies = jnp.array([[0.5, 0.5], [-0.5, -0.5], [0.5, 0.0]])
    np.testing.assert_array_equal(physics.contact_forces(bodies, bodies, np.full((3, 3), 0.1)), 0)


def test_contact_forces_equal_a_numpy_loop():
    rng = np.random.default_rng(0)
    a, b = rng.uniform(-0.3, 0.3, (7, 2)), rng.uniform(-0.3, 0.3, (5, 2))
    reach = rng.uniform(0.05, 0.3, (7, 5))
    expected = np.zeros((7, 2))
    for i in range(7):
        for j in range(5):
            apart = np.linalg.norm(a[i] - b[j])
            depth = 1e-3 * np.logaddexp(0, -(apart - reach[i, j]) / 1e-3)
            expected[i] += 100 * (a[i] - b[j]) / apart * depth
    ours = physics.contact_forces(
        jnp.asarray(a, jnp.float32), jnp.asarray(b, jnp.float32), reach.astype(np.float32)
    )
    np.testing.assert_allclose(ours, expected, atol=2e-4)


def test_contact_forces_sum_to_zero():
    rng = np.random.default_rng(1)
    bodies = jnp.asarray(rng.uniform(-0.2, 0.2, (12, 2)), jnp.float32)
    forces = physics.contact_forces(bodies, bodies, np.full((12, 12), 0.15, np.float32))
    assert np.abs(forces).max() > 1
    np.testing.assert_allclose(forces.sum(0), 0, atol=1e-4)


def test_contact_forces_are_zero_at_the_same_point():
    bodies = jnp.zeros((2, 2))
    np.testing.assert_array_equal(physics.contact_forces(bodies, bodies, np.full((2, 2), 0.1)), 0)


def test_accelerate_clamps_the_speed_of_each_body():
    velocity = physics.accelerate(
        jnp.array([[10.0, 0.0], [0.3, 0.4]]), jnp.zeros((2, 2)), np.array([2.0, 2.0])
    )
    np.testing.assert_allclose(velocity, [[2.0, 0.0], [0.225, 0.3]], rtol=1e-6)


def test_nearest_is_zero_where_everything_is_masked():
    squared = jnp.array([[4.0, 9.0], [1.0, 16.0]])
    mask = jnp.array([[True, True], [False, False]])
    np.testing.assert_allclose(physics.nearest(squared, mask, 1), [2.0, 0.0])
