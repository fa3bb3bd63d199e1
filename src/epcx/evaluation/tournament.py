"""Games between any sides at one population, and cross-play of everybody against everybody."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from epcx.engines.arena import Arena
from epcx.evaluation.evaluate import Summary, summarise
from epcx.evaluation.players import Contestant, Side
from epcx.evaluation.scorebook import Scorebook
from epcx.games import Game, World

RULES = 1  # counts changes of what the same sides would get


class Tournament:
    """Plays games; all of them have the same starts.

    What the book knows already is not played again.
    """

    def __init__(self, game: Game, seed: int = 0, book: Scorebook | None = None):
        self.game, self.seed = game, seed
        self.book = book or Scorebook()
        self.arenas: dict[tuple[str, ...], Arena] = {}

    def play(self, sides: Mapping[str, Side], episodes: int) -> Summary:
        """What each role gets and does, where `sides` says who plays it."""
        told = {
            "rules": RULES,
            "game": self.game.name,
            "population": str(self.game.population),
            "episodes": episodes,
            "seed": self.seed,
            "sides": {role: [sides[role].kind, sides[role].digest] for role in self.game.members},
        }
        chosen = [sides[role] for role in self.game.members]
        return self.book.look_up(told, lambda: self._play(chosen, episodes))

    def _play(self, sides: list[Side], episodes: int) -> Summary:
        kinds = tuple(side.kind for side in sides)
        if kinds not in self.arenas:
            self.arenas[kinds] = Arena(self.game, together([side.act for side in sides]))
        team = tuple(side.agents for side in sides)
        (played,) = self.arenas[kinds].play([team], jax.random.key(self.seed), episodes)
        return summarise(self.game, played)


def together(acts: Sequence[Callable[..., Array]]) -> Callable[[Array, Any, World], Array]:
    """Every role decided by its own function, with its own agents and chance."""

    def act(key: Array, team: tuple[Any, ...], worlds: World) -> Array:
        keys = jax.random.split(key, len(acts))
        parts = [f(k, agents, worlds) for f, k, agents in zip(acts, keys, team, strict=True)]
        return jax.numpy.concatenate(parts)

    return act


def batch_of_one(tree: Any) -> Any:
    """With a batch axis at the end of every array."""
    return jax.tree.map(lambda x: jax.numpy.asarray(x)[..., None], tree)


def in_one_world(sides: Sequence[Side]) -> Callable[[Array, tuple[Any, ...], World], Array]:
    """The same for a single world, without a batch axis."""
    act = together([side.act for side in sides])

    def one(key: Array, team: tuple[Any, ...], world: World) -> Array:
        return act(key, team, batch_of_one(world))[..., 0]

    return one


@dataclass(frozen=True)
class Meeting:
    """One game of a cross-play: who played which role, and what came of it."""

    sides: dict[str, str]
    roles: Summary


@dataclass(frozen=True)
class CrossPlay:
    """Everybody in each role against everybody in the others."""

    game: str
    population: str
    episodes: int
    names: tuple[str, ...]
    counts: dict[str, int]  # agents of each role
    meetings: tuple[Meeting, ...]

    @property
    def alone(self) -> bool:
        """Whether there are no opponents."""
        return len(self.counts) == 1

    def matrix(
        self, role: str, statistic: str = "reward"
    ) -> tuple[Float[np.ndarray, "rows columns"], Float[np.ndarray, "rows columns"]]:
        """Means and standard errors: rows play `role`, columns all others (one if there are none).

        NaN where it was not played.
        """
        others = [""] if self.alone else list(self.names)
        shape = len(self.names), len(others)
        mean, error = np.full(shape, np.nan), np.full(shape, np.nan)
        for meeting in self.meetings:
            against = {name for other, name in meeting.sides.items() if other != role} or {""}
            if len(against) > 1:
                continue
            place = self.names.index(meeting.sides[role]), others.index(against.pop())
            found = meeting.roles[role][statistic]
            mean[place], error[place] = found["mean"], found["error"]
        return mean, error

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def crossplay(
    tournament: Tournament,
    contestants: Sequence[Contestant],
    episodes: int,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> CrossPlay:
    """Plays every pair both ways; `watch` is told how many games are done, of how many."""
    game = tournament.game
    sides = {c.name: {role: c.side(game, role) for role in game.members} for c in contestants}
    pairings = list(pairs(list(sides), list(game.members)))
    meetings = []
    for number, pairing in enumerate(pairings):
        watch(number, len(pairings))
        chosen = {role: sides[name][role] for role, name in pairing.items()}
        meetings.append(Meeting(pairing, tournament.play(chosen, episodes)))
    watch(len(pairings), len(pairings))
    counts = dict(zip(game.members, game.population.counts, strict=True))
    return CrossPlay(
        game.name,
        str(game.population),
        episodes,
        tuple(sides),
        counts,
        tuple(meetings),
    )


def pairs(names: list[str], roles: list[str]) -> Iterator[dict[str, str]]:
    """Who plays which role: each name in each role, against each name in all others; each once."""
    seen = []
    for role in roles:
        for name in names:
            for other in names if len(roles) > 1 else [name]:
                sides = {r: name if r == role else other for r in roles}
                if sides not in seen:
                    seen.append(sides)
                    yield sides
