"""Which implementation networks get, and that any sizes work with one of them."""

import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epcx.networks import kernels
from epcx.networks.agent import ARCHITECTURES
from epcx.networks.kernels import cpu, pallas
from epcx.networks.seat import seats
from tests.networks import reference
from tests.networks.helpers import SizedGame, needs_compiler


def on_gpu(monkeypatch, capability="9.0"):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    device = SimpleNamespace(compute_capability=capability)
    monkeypatch.setattr(jax, "local_devices", lambda: [device])


@pytest.mark.parametrize(
    ("capability", "name"), [("9.0", "Pallas"), ("7.5", "XLA"), ("gfx90a", "XLA")]
)
def test_pallas_is_selected_on_gpus_that_have_what_it_needs(monkeypatch, capability, name):
    on_gpu(monkeypatch, capability)
    assert kernels.select(1, [5, 4], 5).name == name
    assert kernels.describe() == name


@pytest.mark.parametrize(
    ("features", "actions", "name"),
    [
        ([15, 15], 16, "Pallas"),
        ([15, 16], 16, "XLA"),
        ([16, 15], 16, "XLA"),
        ([15, 15], 17, "XLA"),
        ([5], 5, "XLA"),  # no entities
    ],
)
def test_selection_falls_back_to_plain_jax_beyond_the_limits_of_pallas(
    monkeypatch, features, actions, name
):
    on_gpu(monkeypatch)
    assert kernels.select(1024, features, actions).name == name


@needs_compiler
@pytest.mark.parametrize(
    ("rows", "features", "name"),
    [(8, [8, 8], "C++"), (7, [8, 8], "XLA"), (8, [9, 8], "XLA"), (8, [8, 9], "XLA")],
)
def test_selection_falls_back_to_plain_jax_beyond_the_limits_of_cpp(rows, features, name):
    assert kernels.select(rows, features, actions=40).name == name


@needs_compiler
def test_cpp_is_not_selected_for_double_precision():
    with jax.enable_x64(True):
        assert kernels.select(1024, [5, 4]).name == "XLA"
        assert kernels.describe() == "XLA"


def test_cpp_is_not_selected_if_it_is_turned_off(monkeypatch):
    monkeypatch.setenv("EPCX_CPU_KERNELS", "0")
    assert kernels.select(1024, [5, 4]).name == "XLA"
    assert kernels.describe() == "XLA"


@needs_compiler
def test_describe_and_creating_networks_compile_nothing(tmp_path):
    code = """
import jax
from epcx import games, learners
from epcx.networks import kernels
from epcx.networks.agent import ARCHITECTURES
from epcx.networks.kernels import cpu
game = games.make("grassland", "1-1")
jax.eval_shape(lambda: ARCHITECTURES["attention"].agents(jax.random.key(0), game))
print(kernels.describe())
assert cpu._registered.cache_info().currsize == 0
"""
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("C++ (")
    assert list(tmp_path.rglob("*.so")) == []


def test_describe_names_xla_for_a_compiler_that_does_not_run(monkeypatch):
    monkeypatch.setenv("CXX", "/nothing/here")
    assert kernels.describe() == "XLA"


# own features, features per entity type, actions: within all limits, beyond them, no entities
SIZES = [(3, (1, 6), 7), (2, (20, 3), 30), (4, (), 3)]


@pytest.mark.parametrize(("own", "features", "actions"), SIZES)
def test_attention_networks_take_any_numbers_of_features_and_actions(own, features, actions):
    game = SizedGame("2-1", own, features, actions)
    networks = ARCHITECTURES["attention"]
    agents = jax.jit(lambda key: networks.agents(key, game))(jax.random.key(0))
    agents = jax.tree.map(lambda x: x + 0.1, agents)  # biases, too, should matter
    worlds = game.reset_batch(jax.random.split(jax.random.key(1), 9))
    taken = jax.nn.softmax(jax.random.normal(jax.random.key(2), (actions, 3, 9)), 0)
    alive = game.alive_batch(worlds).at[1].set(False)

    @jax.jit
    def outputs(agents):
        views = networks.views(game, worlds)
        logits = jax.vmap(lambda policy, view: policy(view), (0, -2))(agents.policy, views)

        def q_values(critic, seat):
            context = critic.encode(views, taken, alive, seat)
            own = seat.mine(taken)
            return critic.q_value(context), critic.q_value_of(context, own)

        return logits, *jax.vmap(q_values)(agents.critic, seats(game))

    logits, q, same = outputs(agents)
    assert logits.shape == (3, actions, 9)
    np.testing.assert_allclose(q, same, rtol=1e-4, atol=1e-5)
    view = game.observe(jax.tree.map(lambda x: x[..., 4], worlds))
    for i in range(3):
        agent = jax.tree.map(lambda x, i=i: np.asarray(x)[i], agents)
        expected = reference.logits(agent.policy, view, i)
        np.testing.assert_allclose(logits[i, :, 4], expected, rtol=1e-3, atol=1e-4)
        expected = reference.value(agent.critic, game, view, taken[..., 4].T, alive[:, 4], i)
        np.testing.assert_allclose(q[i, 4], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["mlp", "mean-field", "mean-field-local"])
def test_flat_networks_take_any_numbers_of_features_and_actions(name):
    game = SizedGame("2-1", 2, (20, 3), 30)
    networks = ARCHITECTURES[name]
    agents = jax.jit(lambda key: networks.agents(key, game))(jax.random.key(0))
    worlds = game.reset_batch(jax.random.split(jax.random.key(1), 9))
    views = networks.views(game, worlds)
    assert views.shape == (game.flat_width, 3, 9)
    logits = jax.vmap(lambda policy, view: policy(view), (0, -2))(agents.policy, views)
    assert logits.shape == (3, 30, 9)

    def q_value(critic, seat):
        return critic.q_value(critic.encode(views, jnp.ones((30, 3, 9)), alive, seat))

    alive = game.alive_batch(worlds)
    assert jax.vmap(q_value)(agents.critic, seats(game)).shape == (3, 9)


@pytest.mark.parametrize("usable", [cpu, pallas])
def test_bytes_of_hidden_units_follow_the_implementation(monkeypatch, usable):
    game = SizedGame("2-1", 3, (1, 6), 7)
    networks = ARCHITECTURES["attention"]
    hidden, encoded = 3 * 2 * 4 * 32 * 4, 3 * 3 * 16 * 4
    monkeypatch.setattr(cpu, "usable", lambda: False)
    assert (networks.hidden_bytes(game), networks.activation_bytes(game)) == (hidden, hidden)
    monkeypatch.setattr(usable, "usable", lambda: True)
    # With C++ they stay out of memory, but shards must not depend on a compiler.
    expected = hidden if usable is cpu else encoded
    assert (networks.hidden_bytes(game), networks.activation_bytes(game)) == (expected, encoded)
