"""Trained agents in a few lines of code, and in cross-play of whatever there is."""

import json
import re
import shutil

import jax
import numpy as np
import pytest

import epcx
from epcx.cli import main
from tests.made import made_run
from tests.test_cli import fails


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An attention run and an MLP run of Grassland."""
    folder = tmp_path_factory.mktemp("trained")
    made_run(folder / "epc", "grassland", "epc", ("1-1", "2-1"), matches=None)
    made_run(folder / "mlp", "grassland", "maddpg", ("2-1",), matches=2)
    return folder


@pytest.mark.parametrize("name", ["epc", "mlp"])
def test_agents_act_on_what_they_see(folder, name):
    team = epcx.load(folder / name)
    assert str(team.game.population) == "2-1"
    key, world = jax.random.key(1), team.game.reset(jax.random.key(0))
    sheep = team.role("sheep")
    actions = sheep.act(key, sheep.observe(world))
    assert actions.shape == (2, 5)
    np.testing.assert_allclose(actions.sum(1), 1, rtol=1e-5)
    seen = {"epc": team.game.observe, "mlp": team.game.observe_flat}[name](world)
    wolves = jax.tree.map(lambda x: x[2:], seen)
    for a, b in zip(*map(jax.tree.leaves, (team.role("wolf").observe(world), wolves)), strict=True):
        np.testing.assert_array_equal(a, b)
    keys = jax.random.split(jax.random.key(2), 7)
    many = jax.jit(jax.vmap(team.act, (0, None)))(keys, world)
    assert many.shape == (7, 3, 5)
    assert float(many.std(0).min()) > 0  # policies are stochastic


def test_a_role_or_population_that_is_not_there_is_named(folder):
    team = epcx.load(folder / "epc")
    with pytest.raises(epcx.InputError, match=r"no role 'cow': its roles are sheep, wolf"):
        team.role("cow")
    with pytest.raises(epcx.InputError, match="another architecture or population"):
        epcx.load(folder / "mlp", "4-2")
    shutil.copytree(folder / "mlp", folder / "torn")
    (folder / "torn" / "agents" / "2-1" / "0" / "wolf.safetensors").unlink()
    with pytest.raises(epcx.InputError, match="torn has no agents of wolf at 2-1, match 0"):
        epcx.load(folder / "torn")
    with pytest.raises(epcx.InputError, match="episodes 0 is not a whole number"):
        team.play(episodes=0)


def test_runs_of_different_architectures_meet(folder, capsys):
    players = [f"{folder}/epc", f"{folder}/mlp@2-1:1"]
    main(["crossplay", *players, "--episodes", "20", "--json"])
    played = json.loads(capsys.readouterr().out)
    assert played["names"] == ["epc", "maddpg"]
    assert played["population"] == "2-1"
    assert len(played["meetings"]) == 4
    for meeting in played["meetings"]:
        assert {"mean", "error"} == meeting["roles"]["sheep"]["reward"].keys()
    assert {(m["sides"]["sheep"], m["sides"]["wolf"]) for m in played["meetings"]} == {
        (a, b) for a in played["names"] for b in played["names"]
    }


def test_cross_play_for_a_terminal(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    players = [f"{folder}/epc@2-1", f"{folder}/epc@1-1", "--episodes", "20"]
    main(["crossplay", *players])
    shown = capsys.readouterr().out
    assert "against epc@2-1" in shown
    assert "sheep by" in shown
    assert "wolf by" in shown
    assert " ± " in shown


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["scripted"], "no run is named"),
        (["EPC", "nowhere"], "nowhere is not a run"),
        (["EPC", "EPC"], "is named twice"),
        (["EPC@7-7"], "stage '7-7' is not in"),
        (["EPC@2-1:x"], "match 'x' in"),
        (["EPC@2-1:9"], "match 9 is not a whole number from 0 to 1"),
        (["EPC", "--episodes", "0"], "episodes 0 is not a whole number"),
        (["EPC", "--population", "3"], "does not fit grassland"),
        (["EPC", "FOOD"], "different games: grassland, food-collection"),
    ],
)
def test_players_that_cannot_meet_are_named(folder, capsys, arguments, complaint):
    food = folder / "food"
    if not food.exists():
        made_run(food, "food-collection", "att-maddpg", ("1",))
    places = {"EPC": f"{folder}/epc", "FOOD": str(food)}
    named = [re.sub("EPC|FOOD", lambda match: places[match[0]], a) for a in arguments]
    assert complaint in fails(capsys, "crossplay", *named)
