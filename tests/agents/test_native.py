"""The program for CPUs against the plain network it stands for, and life without a compiler."""

import os
import stat
import subprocess
import sys
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epcx import games, learners
from epcx.agents import attention as networks
from epcx.agents.kernels import cpu, native
from epcx.agents.layers import EMBEDDING
from epcx.agents.seat import seats
from epcx.cli import format_warning
from epcx.errors import Notice
from tests.agents.test_kernels import compare, encoder_of, values_and_gradients, view_of

SMALL = 'extern "C" int answer() { return ANSWER; }'
needs_compiler = pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler")


def natively(view):
    return lambda encoder: encoder.native(view)


def check_equal(*arguments, **options):
    assert cpu.usable()
    compare(natively, *arguments, **options)


@needs_compiler
@pytest.mark.parametrize(("slots", "rows"), [(1, (16,)), (3, (3, 37)), (65, (1,))])
def test_values_and_gradients_equal_the_plain_ones(slots, rows):
    check_equal({"a": (slots, 2), "b": (4, 4)}, rows)


@needs_compiler
@pytest.mark.parametrize("features", [1, 3, 5, cpu.MOST_FEATURES])
def test_entities_may_have_any_number_of_features(features):
    check_equal({"a": (5, features)}, (40,))


@needs_compiler
@pytest.mark.parametrize(("slots", "present"), [(0, 1.0), (6, 0.0), (6, 0.05)])
def test_nobody_few_or_all_may_be_there(slots, present):
    check_equal({"a": (slots, 4)}, (50,), present)


@needs_compiler
def test_large_scores_do_not_overflow():
    check_equal({"a": (7, 4)}, (40,), scale=6.0, tolerance=1e-2)


@needs_compiler
def test_who_is_absent_may_be_anything():
    encoder = encoder_of(jax.random.key(0), {"a": 4})
    view = view_of(jax.random.key(1), {"a": (5, 4)}, (40,))
    features, mask = view.entities["a"]
    other = jnp.where(mask, features, 1e6)
    slope = jax.random.normal(jax.random.key(2), (encoder.width, 40))
    first = values_and_gradients(natively(view), slope, encoder)
    view.entities["a"] = networks.Entities(other, mask)
    second = values_and_gradients(natively(view), slope, encoder)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


@needs_compiler
@pytest.mark.parametrize("layer", [0, 1])
def test_what_is_not_a_number_does_not_hide(layer):
    encoder = encoder_of(jax.random.key(0), {"a": 4})
    view = view_of(jax.random.key(1), {"a": (5, 4)}, (40,), present=1.0)
    weight = encoder.entities["a"].layers[layer].weight.at[0, 0].set(jnp.nan)
    broken = networks.eqx.tree_at(lambda e: e.entities["a"].layers[layer].weight, encoder, weight)
    values, *gradient = values_and_gradients(natively(view), jnp.ones((32, 40)), broken)
    assert np.isnan(values[EMBEDDING:]).all()
    assert any(np.isnan(x).any() for x in gradient)


@needs_compiler
def test_networks_side_by_side_do_what_each_does_alone():
    sets = {"a": (3, 2), "b": (4, 4)}
    keys = jax.random.split(jax.random.key(0), 3)
    encoders = jax.vmap(partial(encoder_of, widths={"a": 2, "b": 4}))(keys)
    view = view_of(jax.random.key(1), sets, (3, 21))
    slopes = jax.random.normal(jax.random.key(2), (3, encoders.width, 21))

    def one(encoder, view, slope):
        values, back = jax.vjp(lambda encoder: encoder.native(view), encoder)
        return values, back(slope)

    together = jax.jit(jax.vmap(one, (0, -2, 0)))(encoders, view, slopes)
    for i in range(3):
        own = jax.tree.map(lambda x, i=i: x[i], encoders)
        seen = jax.tree.map(lambda x, i=i: x[..., i, :], view)
        alone = jax.jit(one)(own, seen, slopes[i])
        for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(a[i], b, rtol=1e-5, atol=1e-6)


@needs_compiler
@pytest.mark.parametrize("rows", [(3,), (5, 31)])
def test_what_observations_and_actions_make_equals_the_plain_one(rows):
    game = games.make("grassland", "1-1")
    critic = networks.AttentionCritic(jax.random.key(0), game)
    critic = jax.tree.map(lambda x: x + 0.1, critic)  # biases, too, should matter
    keys = jax.random.split(jax.random.key(1), 3)
    encoded = jax.random.normal(keys[0], (critic.encoder.width, *rows))
    actions = jax.nn.softmax(jax.random.normal(keys[1], (5, *rows)), 0)
    slope = jax.random.normal(keys[2], (EMBEDDING, *rows))
    both = (
        values_and_gradients(how, slope, critic, encoded, actions)
        for how in (networks.AttentionCritic.embed_native, networks.AttentionCritic.embed)
    )
    for a, b in zip(*both, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4 * max(1.0, float(jnp.abs(b).max())))


@needs_compiler
def test_a_critic_judges_the_same_with_and_without(monkeypatch):
    game = games.make("grassland", "2-1")
    critic = networks.AttentionCritic(jax.random.key(0), game)
    worlds = jax.vmap(game.reset, out_axes=-1)(jax.random.split(jax.random.key(1), 9))
    views = networks.arrange(networks.see(game, worlds))
    actions = jax.nn.softmax(jax.random.normal(jax.random.key(2), (5, 3, 9)), 0)
    alive = jax.random.bernoulli(jax.random.key(3), 0.8, (3, 9))
    seat = jax.tree.map(lambda x: x[1], seats(game))

    def value(critic, actions):
        context = critic.context(views, actions, alive, seat)
        return (critic.judge(context) + critic.reconsider(context, actions[:, 0])).sum()

    def traced():
        return jax.jit(jax.value_and_grad(lambda *x: value(*x), (0, 1))).trace(critic, actions)

    program = traced()
    assert "epcx_combine_backwards" in str(program.jaxpr)
    ours = program.lower().compile()(critic, actions)
    monkeypatch.setenv("EPCX_NATIVE", "0")
    program = traced()
    assert "epcx_" not in str(program.jaxpr)
    expected = program.lower().compile()(critic, actions)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


# The compiler


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@needs_compiler
def test_a_library_is_compiled_once(tmp_path, monkeypatch):
    calls = tmp_path / "calls"
    compiler = " ".join(native.compiler())
    wrapper = script(tmp_path / "my c++", f'echo "$@" >> {calls}; exec {compiler} "$@"')
    monkeypatch.setenv("CXX", f"'{wrapper}'")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "small.cc"
    source.write_text(SMALL)
    for _ in range(2):
        assert native.load(source, {"ANSWER": 40}).answer() == 40
    made = [line for line in calls.read_text().splitlines() if " -o " in line]
    assert len(made) == 1
    (kept,) = os.listdir(tmp_path / "cache" / "epcx" / "native")  # and nothing half-made
    assert kept.endswith(".so")


@needs_compiler
def test_a_damaged_library_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "small.cc"
    source.write_text(SMALL)
    code = "import sys; from pathlib import Path; from epcx.agents.kernels import native; "
    code += "print(native.load(Path(sys.argv[1]), {'ANSWER': 41}).answer())"
    for _ in range(2):  # in a process each: one that has a library open does not look again
        shown = subprocess.run([sys.executable, "-c", code, source], capture_output=True, text=True)
        assert (shown.stdout, shown.stderr) == ("41\n", "")
        (library,) = (tmp_path / "cache" / "epcx" / "native").iterdir()
        assert library.stat().st_size > 0
        library.write_bytes(b"")


@needs_compiler
def test_a_cache_that_cannot_be_written_does_no_harm(tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "small.cc"
    source.write_text(SMALL)
    assert native.load(source, {"ANSWER": 42}).answer() == 42


@pytest.mark.parametrize(
    ("compiler", "why"),
    [
        ("echo 'in file\nfatal error: no space left' >&2; exit 1", "fatal error: no space left"),
        ("printf '\\377\\376' >&2; exit 1", "\ufffd"),
        ("exit 1", "no reason"),
        ("sleep 5", "timed out"),
    ],
)
def test_a_compiler_that_fails_is_told_and_done_without(tmp_path, monkeypatch, compiler, why):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", script(tmp_path / "c++", compiler))
    monkeypatch.setattr(native, "PATIENCE", 1)
    with pytest.warns(Notice, match=f"could not compile cpu.cc.*{why}"):
        assert native.load(cpu.SOURCE, cpu.CONSTANTS) is None


@pytest.mark.parametrize("name", ["/nothing/here", "g++ 'x"])
def test_a_compiler_that_is_not_there_is_told_and_done_without(monkeypatch, name):
    monkeypatch.setenv("CXX", name)
    with pytest.warns(Notice, match="No such file"):
        assert native.load(cpu.SOURCE, cpu.CONSTANTS) is None


def test_notices_are_sentences_on_the_command_line():
    assert format_warning(Notice("slow"), Notice, "a.py", 1) == "epcx: slow\n"
    assert "a.py" in format_warning(UserWarning("other"), UserWarning, "a.py", 1)


@needs_compiler
def test_few_rows_are_not_worth_a_call_and_many_worlds_can_be_vmapped():
    game = games.make("food-collection", "2")
    policy = networks.AttentionPolicy(jax.random.key(0), game)
    world = jax.vmap(game.reset, out_axes=-1)(jax.random.split(jax.random.key(1), 20))
    view = jax.tree.map(lambda x: x[..., 0, :], networks.arrange(networks.see(game, world)))
    assert "epcx_attend" in str(jax.make_jaxpr(policy)(view))
    one_by_one = jax.vmap(lambda view: policy(view), -1, -1)
    assert "epcx_attend" not in str(jax.make_jaxpr(one_by_one)(view))
    np.testing.assert_allclose(jax.jit(one_by_one)(view), policy(view), atol=1e-5)


@needs_compiler
def test_parts_of_a_match_do_not_depend_on_the_compiler(monkeypatch):
    """A checkpoint could not be resumed otherwise."""
    learner = learners.make("att-maddpg", games.make("food-collection", "3"))
    parts = learner.most_parts()
    monkeypatch.setenv("EPCX_NATIVE", "0")
    assert learner.most_parts() == parts > 1


def test_networks_do_without_a_compiler(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    encoder = encoder_of(jax.random.key(0), {"a": 4})
    view = view_of(jax.random.key(1), {"a": (5, 4)}, (8,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not cpu.usable()
        np.testing.assert_array_equal(encoder(view), encoder.attending(view)[0])
