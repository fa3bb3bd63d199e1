"""Games between sides: everybody plays the role it is given, and nothing is played twice."""

import json
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from epcx import games
from epcx.evaluation.players import SCRIPTS, Script, Side
from epcx.evaluation.scorebook import Scorebook
from epcx.evaluation.scripted import scripted
from epcx.evaluation.tournament import Tournament, crossplay, pairs


@dataclass(frozen=True)
class Pusher:
    """Pushes with all its members in one direction, which is its weight."""

    name: str
    direction: int

    def side(self, game, role):
        members = game.members[role]
        number = members.stop - members.start

        def act(key, agents, worlds):
            return jnp.broadcast_to(agents[:, :, None], (number, 5, worlds.time.shape[0]))

        push = np.tile(np.eye(5, dtype=np.float32)[self.direction], (number, 1))
        return Side("pusher", act, push, str(self.direction))


GAME = games.make("grassland", "2-1")


def test_everybody_meets_everybody_in_every_role():
    assert list(pairs(["a", "b"], ["one"])) == [{"one": "a"}, {"one": "b"}]
    two = list(pairs(["a", "b"], ["x", "y"]))
    assert len(two) == 4
    assert {(p["x"], p["y"]) for p in two} == {(i, j) for i in "ab" for j in "ab"}
    three = list(pairs(["a", "b"], ["x", "y", "z"]))
    assert {"x": "a", "y": "b", "z": "b"} in three
    assert {"x": "b", "y": "a", "z": "b"} in three
    assert len(three) == 8 == len({tuple(p.values()) for p in three})


def test_the_matrix_says_who_played_which_role():
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
    assert json.loads(json.dumps(played.to_json()))["names"] == ["same", "other"]


def test_without_opponents_everybody_plays_alone():
    game = games.make("food-collection", 2)
    played = crossplay(Tournament(game), list(SCRIPTS), 20)
    mean, _ = played.matrix("collector")
    assert mean.shape == (2, 1)
    assert mean[0, 0] > 60 > 10 > mean[1, 0]


def test_what_is_known_is_not_played_again(tmp_path, monkeypatch):
    path = tmp_path / "new" / "games.jsonl"
    sides = {role: Pusher("p", 1).side(GAME, role) for role in GAME.members}
    first = Tournament(GAME, book=Scorebook(path)).play(sides, 10)
    with open(path, "a") as file:
        file.write('{"digest": "half a li')  # the machine stopped

    with monkeypatch.context() as patched:
        patched.setattr(Tournament, "_play", lambda *_: pytest.fail("played again"))
        assert Tournament(GAME, book=Scorebook(path)).play(sides, 10) == first

    asked = []
    monkeypatch.setattr(Tournament, "_play", lambda *_: asked.append(1) or {})
    book = Scorebook(path)
    Tournament(GAME, book=book).play(sides, 11)
    Tournament(GAME, seed=1, book=book).play(sides, 10)
    moved = sides | {"wolf": Pusher("p", 2).side(GAME, "wolf")}
    Tournament(GAME, book=book).play(moved, 10)
    assert len(asked) == 3
    assert len(Scorebook(path).known) == 4  # the line after the broken one is whole


def test_scripts_act_in_the_seats_of_their_role():
    game = games.make("grassland", "2-2")
    worlds = jax.vmap(game.reset, out_axes=-1)(jax.random.split(jax.random.key(0), 3))
    everybody = jax.vmap(scripted(game), (None, -1), -1)(jax.random.key(0), worlds)
    for role, members in game.members.items():
        side = Script("scripted").side(game, role)
        actions = jax.jit(side.act)(jax.random.key(1), None, worlds)
        np.testing.assert_allclose(actions, everybody[members], atol=1e-6)
