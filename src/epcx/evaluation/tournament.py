"""Games between any players at one population, and cross-play of all against all."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from epcx.evaluation.players import Act, Player, PlayerSource
from epcx.evaluation.result_cache import ResultCache
from epcx.evaluation.summary import Summary, summarise
from epcx.execution.arena import Arena, JointPolicy
from epcx.games import Game, World, options_of

RULES_VERSION = 1  # to be raised when the same players would get other results


class Tournament:
    """Plays games from the same initial worlds; results in the cache are not played again."""

    def __init__(self, game: Game, seed: int = 0, cache: ResultCache | None = None):
        self.game, self.seed = game, seed
        self.cache = cache or ResultCache()
        self.arenas: dict[tuple[str, ...], Arena] = {}

    def play(self, players: Mapping[str, Player], episodes: int) -> Summary:
        """The rewards and statistics of each role, played by `players[role]`."""
        chosen = {role: players[role] for role in self.game.members}
        description = {
            "rules": RULES_VERSION,
            "game": self.game.reference,
            "population": str(self.game.population),
            "episodes": episodes,
            "seed": self.seed,
            "players": {role: [player.kind, player.digest] for role, player in chosen.items()},
        }
        if options := options_of(self.game):
            description["options"] = options
        return self.cache.get(description, lambda: self._play(list(chosen.values()), episodes))

    def _play(self, players: list[Player], episodes: int) -> Summary:
        kinds = tuple(player.kind for player in players)
        if kinds not in self.arenas:
            self.arenas[kinds] = Arena(self.game, joint_act([player.act for player in players]))
        team = tuple(player.agents for player in players)
        (played,) = self.arenas[kinds].play([team], jax.random.key(self.seed), episodes)
        return summarise(self.game, played)


def joint_act(acts: Sequence[Act]) -> JointPolicy:
    """Every role acts by its own function, with its own agents and key."""

    def act(
        key: Key[Array, ""], team: PyTree, worlds: World
    ) -> Float[Array, "agents actions batch"]:
        keys = jax.random.split(key, len(acts))
        return jnp.concatenate(
            [f(k, agents, worlds) for f, k, agents in zip(acts, keys, team, strict=True)]
        )

    return act


def add_batch_axis(tree: PyTree) -> PyTree:
    """A batch of one, at the end of every array."""
    return jax.tree.map(lambda x: jnp.asarray(x)[..., None], tree)


def act_in_one_world(
    players: Sequence[Player],
) -> Callable[[Key[Array, ""], PyTree, World], Float[Array, "agents actions"]]:
    """As `joint_act`, for a single world without a batch axis."""
    act = joint_act([player.act for player in players])
    return lambda key, team, world: act(key, team, add_batch_axis(world))[..., 0]


@dataclass(frozen=True)
class Pairing:
    """One game of a cross-play: who played which role, and the result."""

    players: dict[str, str]
    roles: Summary


@dataclass(frozen=True)
class CrossPlay:
    """Every player in each role against every player in the others."""

    game: str
    population: str
    episodes: int
    names: tuple[str, ...]
    counts: dict[str, int]  # agents of each role
    pairings: tuple[Pairing, ...]
    options: dict[str, Any]  # of the game

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
        for pairing in self.pairings:
            against = {name for other, name in pairing.players.items() if other != role} or {""}
            if len(against) > 1:
                continue
            place = self.names.index(pairing.players[role]), others.index(against.pop())
            found = pairing.roles[role][statistic]
            mean[place], error[place] = found["mean"], found["error"]
        return mean, error

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def crossplay(
    tournament: Tournament,
    sources: Sequence[PlayerSource],
    episodes: int,
    on_played: Callable[[int, int], None] = lambda done, total: None,
) -> CrossPlay:
    """Plays every pair both ways; `on_played` gets the number of games done, and of all."""
    game = tournament.game
    players = {s.name: {role: s.player(game, role) for role in game.members} for s in sources}
    wanted = list(pairs(list(players), list(game.members)))
    pairings = []
    for number, names in enumerate(wanted):
        on_played(number, len(wanted))
        chosen = {role: players[name][role] for role, name in names.items()}
        pairings.append(Pairing(names, tournament.play(chosen, episodes)))
    on_played(len(wanted), len(wanted))
    counts = dict(zip(game.members, game.population.counts, strict=True))
    return CrossPlay(
        game.reference,
        str(game.population),
        episodes,
        tuple(players),
        counts,
        tuple(pairings),
        options_of(game),
    )


def pairs(names: list[str], roles: list[str]) -> Iterator[dict[str, str]]:
    """Who plays which role: each name in each role, against each name in all others; each once."""
    seen = []
    for role in roles:
        for name in names:
            for other in names if len(roles) > 1 else [name]:
                chosen = {r: name if r == role else other for r in roles}
                if chosen not in seen:
                    seen.append(chosen)
                    yield chosen
