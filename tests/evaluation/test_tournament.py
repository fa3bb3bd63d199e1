"""Games between players: everybody plays its own role, and no game is played twice."""

import json
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest

from epcx import games
from epcx.evaluation.players import Player, fixed_players
from epcx.evaluation.result_cache import ResultCache
from epcx.evaluation.tournament import Tournament, crossplay, pairs

GAME = games.make("grassland", "2-1")


@dataclass(frozen=True)
class Pusher:
    """Pushes with all its members in one direction, which is its weight."""

    name: str
    direction: int

    def player(self, game, role):
        members = game.members[role]
        number = members.stop - members.start

        def act(key, agents, worlds):
            batch = worlds.position.shape[-1]
            return jnp.broadcast_to(agents[:, :, None], (number, 5, batch))

        push = np.tile(np.eye(5, dtype=np.float32)[self.direction], (number, 1))
        return Player("pusher", act, push, str(self.direction))


def test_pairs_are_everybody_with_everybody_in_every_role():
    assert list(pairs(["a", "b"], ["one"])) == [{"one": "a"}, {"one": "b"}]
    two = list(pairs(["a", "b"], ["x", "y"]))
    assert len(two) == 4
    assert {(p["x"], p["y"]) for p in two} == {(i, j) for i in "ab" for j in "ab"}
    three = list(pairs(["a", "b"], ["x", "y", "z"]))
    assert {"x": "a", "y": "b", "z": "b"} in three
    assert {"x": "b", "y": "a", "z": "b"} in three
    assert len(three) == 8 == len({tuple(p.values()) for p in three})


def test_matrix_has_the_role_in_rows_and_the_opponents_in_columns():
    """Sheep that run into a corner are eaten by wolves that do, and by no others."""
    same, other = Pusher("same", 1), Pusher("other", 2)
    played = crossplay(Tournament(GAME), [same, other], 500)
    died, _ = played.matrix("sheep", "died")
    killed, error = played.matrix("wolf", "killed")
    np.testing.assert_allclose(died, killed.T, atol=1e-5)
    assert died[0, 0] > 2 * died[0, 1]
    assert died[1, 1] > 2 * died[1, 0]
    assert (error > 0).all()
    alive, _ = played.matrix("sheep", "survival")
    np.testing.assert_allclose(alive, 1 - died / 2, atol=1e-6)


def test_crossplay_as_json_names_the_players_of_each_pairing():
    reports = []
    sources = [Pusher("a", 1), Pusher("b", 2)]
    played = crossplay(Tournament(GAME), sources, 10, lambda *report: reports.append(report))
    content = json.loads(json.dumps(played.to_json()))
    assert content["names"] == ["a", "b"]
    assert content["counts"] == {"sheep": 2, "wolf": 1}
    assert [pairing["players"] for pairing in content["pairings"]] == [
        {"sheep": sheep, "wolf": wolf} for sheep in "ab" for wolf in "ab"
    ]
    assert reports == [(number, 4) for number in range(5)]


def test_matrix_without_opponents_has_one_column():
    game = games.make("food-collection", 2)
    played = crossplay(Tournament(game), fixed_players(game), 20)
    assert played.names == ("scripted", "random")
    mean, _ = played.matrix("collector")
    assert mean.shape == (2, 1)
    assert mean[0, 0] > 60 > 10 > mean[1, 0]


def test_cached_results_are_not_played_again(tmp_path, monkeypatch):
    path = tmp_path / "new" / "games.jsonl"
    players = {role: Pusher("p", 1).player(GAME, role) for role in GAME.members}
    first = Tournament(GAME, cache=ResultCache(path)).play(players, 10)
    with open(path, "a") as file:
        file.write('{"digest": "half a li')  # the machine stopped

    with monkeypatch.context() as patched:
        patched.setattr(Tournament, "_play", lambda *_: pytest.fail("played again"))
        assert Tournament(GAME, cache=ResultCache(path)).play(players, 10) == first

    played = []
    monkeypatch.setattr(Tournament, "_play", lambda *_: played.append(1) or {})
    cache = ResultCache(path)
    Tournament(GAME, cache=cache).play(players, 11)
    Tournament(GAME, seed=1, cache=cache).play(players, 10)
    others = players | {"wolf": Pusher("p", 2).player(GAME, "wolf")}
    Tournament(GAME, cache=cache).play(others, 10)
    assert len(played) == 3
    assert len(ResultCache(path).known) == 4  # the line after the broken one is whole
