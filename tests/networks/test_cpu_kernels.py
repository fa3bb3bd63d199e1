"""The C++ kernels for CPUs against plain JAX, and what happens without a compiler."""

import os
import stat
import subprocess
import sys
import warnings
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epcx import games, learners
from epcx.cli import format_warning
from epcx.errors import Notice
from epcx.games import Entities
from epcx.networks import kernels
from epcx.networks.attention import AttentionCritic, AttentionPolicy, observe, to_features_first
from epcx.networks.kernels import CPP, XLA, cpp_build, cpu
from epcx.networks.layers import EMBEDDING
from epcx.networks.seat import seats
from tests.networks.helpers import (
    compare_with_plain,
    encode,
    encoder_of,
    needs_compiler,
    values_and_gradients,
    view_of,
)

SOURCE = 'extern "C" int answer() { return ANSWER; }'


def check_encoder(*arguments, **options):
    assert cpu.usable()
    compare_with_plain(CPP, *arguments, **options)


@needs_compiler
@pytest.mark.parametrize(("slots", "rows"), [(1, (16,)), (3, (3, 37)), (65, (1,))])
def test_encoder_equals_plain_jax(slots, rows):
    check_encoder({"a": (slots, 2), "b": (4, 4)}, rows)


@needs_compiler
@pytest.mark.parametrize("features", [1, 3, 5, cpu.MAX_FEATURES])
def test_encoder_takes_any_number_of_features_up_to_the_limit(features):
    check_encoder({"a": (5, features)}, (40,))


@needs_compiler
@pytest.mark.parametrize(("slots", "present"), [(0, 1.0), (6, 0.0), (6, 0.05)])
def test_encoder_takes_empty_and_almost_empty_sets(slots, present):
    check_encoder({"a": (slots, 4)}, (50,), present)


@needs_compiler
def test_encoder_does_not_overflow_for_large_scores():
    check_encoder({"a": (7, 4)}, (40,), scale=6.0, tolerance=1e-2)


@needs_compiler
def test_encoder_ignores_features_of_absent_entities():
    encoder = encoder_of(jax.random.key(0), {"a": 4})
    view = view_of(jax.random.key(1), {"a": (5, 4)}, (40,))
    features, mask = view.entities["a"]
    grad = jax.random.normal(jax.random.key(2), (encoder.width, 40))
    first = values_and_gradients(encode(CPP, view), grad, encoder)
    view.entities["a"] = Entities(jnp.where(mask, features, 1e6), mask)
    second = values_and_gradients(encode(CPP, view), grad, encoder)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


@needs_compiler
@pytest.mark.parametrize("layer", [0, 1])
def test_encoder_propagates_nan(layer):
    encoder = encoder_of(jax.random.key(0), {"a": 4})
    view = view_of(jax.random.key(1), {"a": (5, 4)}, (40,), present=1.0)
    weight = encoder.entities["a"].layers[layer].weight.at[0, 0].set(jnp.nan)
    broken = eqx.tree_at(lambda e: e.entities["a"].layers[layer].weight, encoder, weight)
    values, *gradient = values_and_gradients(encode(CPP, view), jnp.ones((32, 40)), broken)
    assert np.isnan(values[EMBEDDING:]).all()
    assert any(np.isnan(x).any() for x in gradient)


@needs_compiler
def test_encoders_under_vmap_equal_each_encoder_alone():
    types = {"a": (3, 2), "b": (4, 4)}
    keys = jax.random.split(jax.random.key(0), 3)
    encoders = jax.vmap(partial(encoder_of, features={"a": 2, "b": 4}))(keys)
    views = view_of(jax.random.key(1), types, (3, 21))
    grads = jax.random.normal(jax.random.key(2), (3, encoders.width, 21))

    def one(encoder, view, grad):
        values, backward = jax.vjp(encode(CPP, view), encoder)
        return values, backward(grad)

    together = jax.jit(jax.vmap(one, (0, -2, 0)))(encoders, views, grads)
    for i in range(3):
        encoder = jax.tree.map(lambda x, i=i: x[i], encoders)
        view = jax.tree.map(lambda x, i=i: x[..., i, :], views)
        alone = jax.jit(one)(encoder, view, grads[i])
        for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(a[i], b, rtol=1e-5, atol=1e-6)


@needs_compiler
@pytest.mark.parametrize(("actions", "rows"), [(5, (3,)), (5, (5, 31)), (1, (9,)), (18, (9,))])
def test_embedding_equals_plain_jax(actions, rows):
    critic = AttentionCritic(jax.random.key(0), games.make("grassland", "1-1"))
    layer = eqx.tree_at(lambda x: x.weight, critic.action, jnp.zeros((EMBEDDING, actions)))
    critic = eqx.tree_at(lambda critic: critic.action, critic, layer)
    noise = lambda x: x + 0.3 * jax.random.normal(jax.random.key(3), x.shape)  # noqa: E731
    layers = jax.tree.map(noise, (critic.action, critic.combine))
    keys = jax.random.split(jax.random.key(1), 3)
    encoded = jax.random.normal(keys[0], (critic.encoder.width, *rows))
    taken = jax.nn.softmax(jax.random.normal(keys[1], (actions, *rows)), 0)
    grad = jax.random.normal(keys[2], (EMBEDDING, *rows))
    results = (
        values_and_gradients(lambda layers, *x, f=f: f(*layers, *x), grad, layers, encoded, taken)
        for f in (CPP.embed, XLA.embed)
    )
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4 * max(1.0, float(jnp.abs(b).max())))


@needs_compiler
def test_critic_has_the_same_values_with_and_without_the_kernels(monkeypatch):
    game = games.make("grassland", "2-1")
    critic = AttentionCritic(jax.random.key(0), game)
    worlds = game.reset_batch(jax.random.split(jax.random.key(1), 9))
    views = to_features_first(observe(game, worlds))
    actions = jax.nn.softmax(jax.random.normal(jax.random.key(2), (5, 3, 9)), 0)
    alive = jax.random.bernoulli(jax.random.key(3), 0.8, (3, 9))
    seat = jax.tree.map(lambda x: x[1], seats(game))

    def value(critic, actions):
        context = critic.encode(views, actions, alive, seat)
        return (critic.q_value(context) + critic.q_value_of(context, actions[:, 0])).sum()

    def trace():
        return jax.jit(jax.value_and_grad(lambda *x: value(*x), (0, 1))).trace(critic, actions)

    program = trace()
    assert "epcx_embed_backward" in str(program.jaxpr)
    actual = program.lower().compile()(critic, actions)
    monkeypatch.setenv("EPCX_CPU_KERNELS", "0")
    program = trace()
    assert "epcx_" not in str(program.jaxpr)
    expected = program.lower().compile()(critic, actions)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


@needs_compiler
def test_policy_uses_the_kernels_for_many_rows_only():
    game = games.make("food-collection", "2")
    policy = AttentionPolicy(jax.random.key(0), game)
    worlds = game.reset_batch(jax.random.split(jax.random.key(1), 20))
    view = jax.tree.map(lambda x: x[..., 0, :], to_features_first(observe(game, worlds)))
    assert "epcx_entity_attention" in str(jax.make_jaxpr(policy)(view))
    one_by_one = jax.vmap(lambda view: policy(view), -1, -1)
    assert "epcx_entity_attention" not in str(jax.make_jaxpr(one_by_one)(view))
    np.testing.assert_allclose(jax.jit(one_by_one)(view), policy(view), atol=1e-5)


@needs_compiler
def test_number_of_shards_does_not_depend_on_the_compiler(monkeypatch):
    """A checkpoint could not be resumed otherwise."""
    learner = learners.make("maddpg", games.make("food-collection", "3"))
    shards = learner.max_shards()
    monkeypatch.setenv("EPCX_CPU_KERNELS", "0")
    assert learner.max_shards() == shards > 1


# The compiler


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "small.cc"
    path.write_text(SOURCE)
    return path


@needs_compiler
def test_library_is_compiled_once(source, tmp_path, monkeypatch):
    calls = tmp_path / "calls"
    compiler = " ".join(cpp_build.compiler())
    wrapper = script(tmp_path / "my c++", f'echo "$@" >> {calls}; exec {compiler} "$@"')
    monkeypatch.setenv("CXX", f"'{wrapper}'")
    for _ in range(2):
        assert cpp_build.load(source, {"ANSWER": 40}).answer() == 40
    compilations = [line for line in calls.read_text().splitlines() if " -o " in line]
    assert len(compilations) == 1
    folder = tmp_path / "cache" / "epcx" / "cpu-kernels"
    assert sorted(path.suffix for path in folder.iterdir()) == [".sha256", ".so"]  # no others
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def load_in_a_process(source):
    """One that has a library open does not read it again."""
    code = "import sys; from pathlib import Path; from epcx.networks.kernels import cpp_build; "
    code += "print(cpp_build.load(Path(sys.argv[1]), {'ANSWER': 41}).answer())"
    command = [sys.executable, "-W", "default", "-c", code, source]
    return subprocess.run(command, capture_output=True, text=True)


def damage_nothing(library):
    pass


def empty(library):
    library.write_bytes(b"")


def truncate(library):
    """After its headers: loading it would be fatal."""
    os.truncate(library, library.stat().st_size // 2)


def flip_a_bit(library):
    data = bytearray(library.read_bytes())
    data[len(data) // 2] ^= 1
    library.write_bytes(data)


def delete_checksum(library):
    library.with_suffix(".sha256").unlink()


@needs_compiler
@pytest.mark.parametrize("damage", [damage_nothing, empty, truncate, flip_a_bit, delete_checksum])
def test_damaged_library_is_compiled_again(source, tmp_path, damage):
    assert load_in_a_process(source).stdout == "41\n"
    (library,) = (tmp_path / "cache" / "epcx" / "cpu-kernels").glob("*.so")
    intact, inode = library.read_bytes(), library.stat().st_ino
    damage(library)
    shown = load_in_a_process(source)
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, "41\n", "")
    assert library.read_bytes() == intact
    assert (library.stat().st_ino == inode) == (damage is damage_nothing)


def plant(source, folder, answer):
    """Puts a library with another answer, and its checksum, in the place of the right one."""
    other = source.with_name("other.cc")
    other.write_text(SOURCE)
    assert cpp_build.load(source, {"ANSWER": 43}).answer() == 43
    (library,) = folder.glob("*.so")
    planted = cpp_build.load(other, {"ANSWER": answer})
    assert planted.answer() == answer
    (planted_library,) = folder.glob("other*.so")
    for suffix in (".so", ".sha256"):
        os.replace(planted_library.with_suffix(suffix), library.with_suffix(suffix))


@needs_compiler
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_library_in_a_folder_that_others_write_to_is_not_loaded(source, tmp_path, mode):
    folder = tmp_path / "cache" / "epcx" / "cpu-kernels"
    plant(source, folder, 666)
    folder.chmod(mode)
    before = sorted(folder.iterdir())
    with pytest.warns(Notice, match="others may write to the folder .* until it is removed"):
        assert cpp_build.load(source, {"ANSWER": 43}).answer() == 43
    assert sorted(folder.iterdir()) == before


@needs_compiler
def test_library_in_a_folder_of_somebody_else_is_not_loaded(source, tmp_path, monkeypatch):
    plant(source, tmp_path / "cache" / "epcx" / "cpu-kernels", 666)
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    with pytest.warns(Notice, match="is no folder of this user"):
        assert cpp_build.load(source, {"ANSWER": 43}).answer() == 43


@needs_compiler
def test_linked_cache_folder_is_not_used(source, tmp_path):
    (tmp_path / "cache" / "epcx").mkdir(parents=True)
    (tmp_path / "planted").mkdir()
    (tmp_path / "cache" / "epcx" / "cpu-kernels").symlink_to(tmp_path / "planted")
    with pytest.warns(Notice, match="is no folder of this user"):
        assert cpp_build.load(source, {"ANSWER": 44}).answer() == 44
    assert list((tmp_path / "planted").iterdir()) == []


@needs_compiler
def test_library_is_compiled_elsewhere_if_the_cache_is_not_writable(source, tmp_path):
    (tmp_path / "cache").write_text("a file in its place")
    assert cpp_build.load(source, {"ANSWER": 42}).answer() == 42


@pytest.mark.parametrize(
    ("compiler", "why"),
    [
        ("echo 'in file\nfatal error: no space left' >&2; exit 1", "fatal error: no space left"),
        ("printf '\\377\\376' >&2; exit 1", "\ufffd"),
        ("exit 1", "no reason"),
        ("sleep 5", "timed out"),
    ],
)
def test_failing_compiler_causes_a_warning(tmp_path, monkeypatch, compiler, why):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", script(tmp_path / "c++", compiler))
    monkeypatch.setattr(cpp_build, "TIMEOUT", 1)
    with pytest.warns(Notice, match=f"could not compile cpu.cc.*{why}"):
        assert cpp_build.load(cpu.SOURCE, cpu.CONSTANTS) is None


@pytest.mark.parametrize("name", ["/nothing/here", "g++ 'x"])
def test_missing_compiler_that_cxx_names_causes_a_warning(monkeypatch, name):
    monkeypatch.setenv("CXX", name)
    with pytest.warns(Notice, match="No such file"):
        assert cpp_build.load(cpu.SOURCE, cpu.CONSTANTS) is None


def test_networks_are_plain_jax_without_a_compiler(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    encoder = encoder_of(jax.random.key(0), {"a": 4})
    view = view_of(jax.random.key(1), {"a": (5, 4)}, (8,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kernels.describe() == "XLA"
        np.testing.assert_array_equal(encoder(view), encode(XLA, view)(encoder))


def test_notices_are_one_line_on_the_command_line():
    assert format_warning(Notice("slow"), Notice, "a.py", 1) == "epcx: slow\n"
    assert "a.py" in format_warning(UserWarning("other"), UserWarning, "a.py", 1)
