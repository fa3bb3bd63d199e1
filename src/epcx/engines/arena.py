"""Plays episodes of many teams on the devices of this machine, by one compiled program."""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from epcx.engines.devices import keep_compiled_programs
from epcx.engines.lanes import Lanes, lanes_of
from epcx.games import Game, World
from epcx.learners.learner import Learner

Players = Callable[[Array, Any, World], Float[Array, "agents 5 batch"]]
AT_ONCE = 500  # episodes of a team in parallel
TEAMS_ON_A_GPU = 8  # in parallel, too


def everybody(learner: Learner) -> Players:
    """All seats played by policies of the same learner."""

    def act(key: Array, policies: Any, worlds: World) -> Array:
        return learner.act(key, policies, learner.observe(worlds))

    return act


class Arena:
    """`act(key, agents, worlds)` decides for everybody; the batch of worlds is the last axis."""

    def __init__(self, game: Game, act: Players, devices: Sequence[Any] | None = None):
        keep_compiled_programs()
        self.game, self.act = game, act
        self.devices = list(devices or jax.local_devices())
        self.places = lanes_of(self.devices, len(self.devices))
        self.lanes = Lanes(len(self.devices))
        self.rows = 1 if self.devices[0].platform == "cpu" else TEAMS_ON_A_GPU  # in each lane

    def play(
        self, teams: Iterable[Any], key: Array, episodes: int, first: int = 0
    ) -> list[dict[str, np.ndarray]]:
        """For each team what every agent got and did in each episode [N, episodes].

        Where the game has it, also the final coverage [1, episodes]. `first` is the number of the
        first team among all that share the key.
        """
        rounds = -(-episodes // AT_ONCE)
        at_once = self.rows * self.lanes.number
        results: list[dict[str, np.ndarray]] = []
        waiting: list[tuple[Any, Array]] = []
        for number, team in enumerate(teams, first):
            mine = jax.random.fold_in(key, number)
            waiting += [(team, jax.random.fold_in(mine, i)) for i in range(rounds)]
            while len(waiting) >= at_once:
                results += self._batch(waiting[:at_once])
                waiting = waiting[at_once:]
        if waiting:
            results += self._batch(waiting)
        return [
            {
                name: np.concatenate([r[name] for r in results[i : i + rounds]], -1)[:, :episodes]
                for name in self.names
            }
            for i in range(0, len(results), rounds)
        ]

    def compile(self, team: Any) -> "Arena":
        """Ahead of time, for teams of these shapes."""
        teams, keys = jax.eval_shape(
            lambda: (
                jax.tree.map(lambda x: jnp.zeros((self.rows, *x.shape), x.dtype), team),
                jax.random.split(jax.random.key(0), self.rows),
            )
        )
        for (device,) in dict.fromkeys(self.places):
            place = jax.sharding.SingleDeviceSharding(device)
            here = jax.tree.map(
                lambda x, p=place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=p), (teams, keys)
            )
            self._play.lower(*here).compile()
        return self

    @property
    def names(self) -> tuple[str, ...]:
        covers = ("coverage",) * self.game.covers
        return ("reward", "shaping", *self.game.statistics, *covers)

    def _batch(self, rows: list[tuple[Any, Array]]) -> list[dict[str, np.ndarray]]:
        """As many rows as there is room for in all lanes, or fewer."""
        blocks = -(-len(rows) // self.rows)
        filled = rows + rows[-1:] * (blocks * self.rows - len(rows))

        def play(block: int) -> Any:
            mine = filled[block * self.rows : (block + 1) * self.rows]
            teams = jax.tree.map(lambda *x: np.stack(x), *(team for team, _ in mine))
            keys = jnp.stack([key for _, key in mine])
            (device,) = self.places[block]
            return jax.device_get(self._play(*jax.device_put((teams, keys), device)))

        played = self.lanes.run("play", play, blocks)
        return [
            jax.tree.map(lambda x, r=i % self.rows: x[r], played[i // self.rows])
            for i in range(len(rows))
        ]

    @cached_property
    def _play(self) -> Any:
        return jax.jit(jax.vmap(self._round) if self.rows > 1 else self._alone)

    def _alone(self, teams: Any, keys: Array) -> Any:
        one = self._round(jax.tree.map(lambda x: x[0], teams), keys[0])
        return jax.tree.map(lambda x: x[None], one)

    def _round(self, agents: Any, key: Array) -> dict[str, Array]:
        game = self.game
        reset, chance = jax.random.split(key)
        worlds = jax.vmap(game.reset, out_axes=-1)(jax.random.split(reset, AT_ONCE))
        zeros = jnp.zeros((game.num_agents, AT_ONCE))
        sums = dict.fromkeys(("reward", "shaping", *game.statistics), zeros)
        keys = jax.random.split(chance, game.horizon)
        (_, sums), occupied = jax.lax.scan(partial(self._step, agents), (worlds, sums), keys)
        if game.covers:
            sums["coverage"] = occupied[-1].mean(0, keepdims=True)
        return sums

    def _step(self, agents: Any, carry: tuple[World, dict[str, Array]], key: Array) -> Any:
        worlds, sums = carry
        choice, chance = jax.random.split(key)
        keys = jax.random.split(chance, AT_ONCE)
        worlds, outcome = self.game.step(keys, worlds, self.act(choice, agents, worlds))
        events = outcome.events
        news = {"reward": outcome.reward, "shaping": outcome.shaping}
        news |= {name: getattr(events, name).astype(jnp.float32) for name in self.game.statistics}
        return (worlds, jax.tree.map(jnp.add, sums, news)), events.occupied
