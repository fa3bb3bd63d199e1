"""Teams of trained agents: loaded, acting, playing, and in cross-play with others."""

import json
import re
import shutil

import jax
import numpy as np
import pytest

import epcx
from epcx.cli import main
from epcx.evaluation.result_cache import ResultCache
from epcx.evaluation.tournament import Tournament
from tests.factories import make_run
from tests.networks import reference


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An attention run and an MLP run of Grassland, and a run of Food Collection."""
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "epc", "grassland", "epc", ("1-1", "2-1"))
    make_run(folder / "mlp", "grassland", "maddpg", ("2-1",), matches=2)
    make_run(folder / "food", "food-collection", "att-maddpg", ("1",))
    return folder


@pytest.mark.parametrize("name", ["epc", "mlp"])
def test_team_acts_on_what_it_observes(folder, name):
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


def test_greedy_actions_are_the_most_probable_ones(folder):
    team = epcx.load(folder / "epc")
    wolves = team.role("wolf")
    for seed in range(5):
        world = team.game.reset(jax.random.key(seed))
        seen = team.game.observe(world)
        expected = []
        for agent, (role, row) in enumerate((("sheep", 0), ("sheep", 1), ("wolf", 0))):
            policy = jax.tree.map(lambda x, row=row: x[row], team.players[role].agents)
            expected.append(np.eye(5)[reference.logits(policy, seen, agent).argmax()])
        for key in jax.random.split(jax.random.key(seed)):
            np.testing.assert_array_equal(team.act(key, world, greedy=True), expected)
            actions = wolves.act(key, wolves.observe(world), greedy=True)
            np.testing.assert_array_equal(actions, expected[2:])


def test_greedy_and_sampled_play_share_no_cache(folder, tmp_path):
    team = epcx.load(folder / "food")
    cache = ResultCache(tmp_path / "results.jsonl")
    tournament = Tournament(team.game, cache=cache)
    first, second = (tournament.play(team.acting(greedy), 20) for greedy in (False, True))
    assert first == team.play(20)
    assert second == team.play(20, greedy=True)
    assert first["collector"]["reward"] != second["collector"]["reward"]
    assert len(ResultCache(cache.path).known) == 2


def test_evaluate_command_plays_greedily(folder, capsys):
    evaluate = ["evaluate", str(folder / "food"), "--episodes", "20", "--json"]
    shown = []
    for option in ("--no-greedy", "--greedy"):
        main([*evaluate, option])
        shown.append(json.loads(capsys.readouterr().out))
    assert [found["greedy"] for found in shown] == [False, True]
    assert shown[1]["matches"][0]["roles"] == epcx.load(folder / "food").play(20, greedy=True)
    assert shown[0]["matches"] != shown[1]["matches"]


def test_load_takes_the_agents_of_the_stage_and_match(folder):
    def weights(*place):
        team = epcx.load(folder / "epc", *place)
        return np.asarray(jax.tree.leaves(team.players["sheep"].agents)[0])

    np.testing.assert_array_equal(weights(), weights("2-1", "2-1", 0))
    assert not np.array_equal(weights(), weights("2-1", "2-1", 1))
    young = weights("1-1")
    np.testing.assert_array_equal(young, weights("1-1", "1-1"))
    np.testing.assert_array_equal(weights("2-1", "1-1"), young[[0, 0]])  # one agent in two seats


def test_load_refuses_what_the_run_does_not_have(folder):
    team = epcx.load(folder / "epc")
    with pytest.raises(epcx.InputError, match=r"no role 'cow': its roles are sheep, wolf"):
        team.role("cow")
    with pytest.raises(epcx.InputError, match="mlp was trained at 2-1, and its networks fit no"):
        epcx.load(folder / "mlp", "4-2")
    with pytest.raises(epcx.InputError, match="episodes 0 is too small: a whole number"):
        team.play(episodes=0)
    shutil.copytree(folder / "mlp", folder / "torn")
    (folder / "torn" / "agents" / "2-1" / "0" / "wolf.safetensors").unlink()
    with pytest.raises(epcx.InputError, match="torn has no agents of wolf at 2-1, match 0"):
        epcx.load(folder / "torn")


def test_crossplay_of_different_architectures(folder, capsys):
    players = [f"{folder}/epc", f"{folder}/mlp@2-1:1"]
    main(["crossplay", *players, "--episodes", "20", "--json"])
    played = json.loads(capsys.readouterr().out)
    assert played["names"] == ["epc", "maddpg"]
    assert played["population"] == "2-1"
    pairings = played["pairings"]
    assert len(pairings) == 4
    for pairing in pairings:
        assert {"mean", "error"} == pairing["roles"]["sheep"]["reward"].keys()
    assert {(p["players"]["sheep"], p["players"]["wolf"]) for p in pairings} == {
        (a, b) for a in played["names"] for b in played["names"]
    }


def test_crossplay_prints_a_table_for_each_role(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    main(["crossplay", f"{folder}/epc@2-1", f"{folder}/epc@1-1", "--episodes", "20"])
    shown = capsys.readouterr().out
    assert "against epc@2-1" in shown
    assert "against epc@1-1" in shown
    assert "sheep by" in shown
    assert "wolf by" in shown
    assert shown.count(" ± ") == 2 * 4 + 1  # two tables of 2 x 2, and the heading


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["scripted"], "no run is named"),
        (["EPC", "nowhere"], "nowhere is not a run: there is no such folder"),
        (["EPC", "scriptd"], "nor a fixed player: did you mean scripted?"),
        (["EPC", "EPC"], "is named twice"),
        (["EPC@7-7"], "stage '7-7' is not in"),
        (["EPC@2-1:x"], "match 'x' in"),
        (["EPC@2-1:9"], "match 9 is too large: a whole number from 0 to 1"),
        (["EPC", "--episodes", "0"], "episodes 0 is too small: a whole number"),
        (["EPC", "--population", "3"], "does not fit grassland"),
        (["EPC", "FOOD"], "different games: grassland, food-collection"),
    ],
)
def test_crossplay_refuses_players_that_cannot_meet(folder, error_of, arguments, complaint):
    places = {"EPC": f"{folder}/epc", "FOOD": f"{folder}/food"}
    players = [re.sub("EPC|FOOD", lambda match: places[match[0]], a) for a in arguments]
    assert complaint in error_of("crossplay", *players)
