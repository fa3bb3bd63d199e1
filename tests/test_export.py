"""Exported policies act as those of the team, without epcx."""

import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax import export as jax_export

import epcx
from epcx.cli import main
from epcx.evaluation.tournament import add_batch_axis
from epcx.export import arrays_of, to_jax_export
from epcx.networks.agent import ARCHITECTURES
from tests.factories import make_run

PAGE = Path(__file__).parent.parent / "docs" / "export.md"
ALONE = """
import sys
sys.modules["epcx"] = None  # importing it fails
import numpy as np
from jax import export
given = dict(np.load(sys.argv[2]))
seed = given.pop("seed")
inputs = {}
for name, array in given.items():
    role, _, place = name.partition(":")
    inputs.setdefault(role, {})[place] = array
program = export.deserialize(open(sys.argv[1], "rb").read())
if "" in inputs:  # worlds, which belong to no role
    inputs = inputs[""]
np.savez(sys.argv[3], **program.call(seed, inputs))
assert not [name for name in sys.modules if name.startswith("epcx.")]
"""


@pytest.fixture(scope="module")
def teams(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    attention = make_run(folder / "attention", "grassland", "epc", ("1-1", "3-2"))
    flat = make_run(folder / "flat", "grassland", "maddpg", ("3-2",))
    return {run.path.name: epcx.load(run.path) for run in (attention, flat)}


@pytest.fixture(scope="module")
def numpy_policy():
    """The module that the page shows."""
    (block,) = re.findall(
        r"^```python\n# numpy_policy.py\n(.*?)^```", PAGE.read_text(), re.S | re.M
    )
    module = {}
    exec(compile(block, str(PAGE), "exec"), module)
    return module


@pytest.mark.parametrize("name", ["attention", "flat"])
def test_forward_pass_of_the_page_gives_the_logits_of_the_policies(
    teams, numpy_policy, name, tmp_path
):
    team = teams[name]
    team.export(tmp_path / "team.npz")
    about, weights = numpy_policy["load"](tmp_path / "team.npz")
    assert about["roles"] == {
        "sheep": {"agents": 3, "actions": 5},
        "wolf": {"agents": 2, "actions": 5},
    }
    world = team.game.reset(jax.random.key(0))
    for role, player in team.players.items():
        seen = jax.device_get(team.role(role).observe(world))
        views = ARCHITECTURES[about["architecture"]].to_features_first(add_batch_axis(seen))
        expected = jax.vmap(lambda policy, view: policy(view), (0, -2))(player.agents, views)
        for agent in range(about["roles"][role]["agents"]):
            policy = numpy_policy["of_agent"](weights[role], agent)
            if name == "flat":
                logits = numpy_policy["mlp_logits"](policy, seen[agent])
            else:
                entities = {k: (e.features[agent], e.mask[agent]) for k, e in seen.entities.items()}
                logits = numpy_policy["attention_logits"](policy, seen.own[agent], entities)
            np.testing.assert_allclose(logits, expected[agent, :, 0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "inputs", "greedy"),
    [
        ("attention", "observations", False),
        ("flat", "observations", True),
        ("attention", "worlds", False),
    ],
)
def test_program_acts_without_epcx_as_the_team(teams, name, inputs, greedy, tmp_path):
    team = teams[name]
    team.export(tmp_path / "team.jaxexport", inputs, greedy)
    world = team.game.reset(jax.random.key(3))
    given = {
        f"{role}:{place}": np.asarray(x)[None]
        for role, tree in (
            [("", world)]
            if inputs == "worlds"
            else [(role, team.role(role).observe(world)) for role in team.roles]
        )
        for place, x in arrays_of(tree).items()
    }
    np.savez(tmp_path / "given.npz", seed=np.uint32(5), **given)
    files = [tmp_path / file for file in ("team.jaxexport", "given.npz", "actions.npz")]
    subprocess.run([sys.executable, "-c", ALONE, *map(str, files)], check=True)
    actions = np.load(tmp_path / "actions.npz")
    expected = np.asarray(team.act(jax.random.key(5), world, greedy=greedy))
    for role, members in team.game.members.items():
        np.testing.assert_allclose(actions[role][0], expected[members], atol=1e-5)


def test_program_is_portable_and_takes_any_batch(teams):
    team = teams["attention"]
    program = jax_export.deserialize(to_jax_export(team, "worlds", greedy=True))
    assert program.platforms == ("cpu", "cuda")
    assert set(re.findall(r"custom_call @(\w+)", program.mlir_module())) <= {"shape_assertion"}
    keys = jax.random.split(jax.random.key(0), 12)  # rows for which the C++ kernels would be used
    worlds = jax.vmap(team.game.reset)(keys)
    actions = program.call(np.uint32(0), arrays_of(worlds))
    expected = jax.vmap(lambda world: team.act(keys[0], world, greedy=True))(worlds)
    joined = np.concatenate([actions[role] for role in team.game.members], 1)
    np.testing.assert_array_equal(joined, expected)


def test_export_command_writes_files_and_refuses_others(teams, capsys, error_of, tmp_path):
    run = str(teams["attention"].source.run.path)
    main(["export", run, "--out", str(tmp_path / "x.npz"), "--population", "2-1"])
    assert "grassland 2-1" in capsys.readouterr().out
    assert json.loads(str(np.load(tmp_path / "x.npz")["about"]))["population"] == "2-1"
    for name, options, complaint in (
        ("x.onnx", (), "must end with .npz or .jaxexport"),
        ("y.npz", ("--greedy",), "greedy and inputs are for programs"),
        ("nowhere/y.npz", (), "no such file or directory"),
        ("y.npz", ("--stage", "7-7"), "stage '7-7' is not in"),
    ):
        assert complaint in error_of("export", run, "--out", tmp_path / name, *options)
    assert [path.name for path in tmp_path.iterdir()] == ["x.npz"]
