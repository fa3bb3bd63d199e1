"""Plays episodes of many teams on the devices of this machine, by one compiled program."""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from epcx.execution.device_groups import DeviceGroups, group_devices
from epcx.execution.devices import enable_compilation_cache
from epcx.games import Game, Outcome, World
from epcx.learners.learner import Learner

JointPolicy = Callable[[Key[Array, ""], PyTree, World], Float[Array, "agents actions batch"]]
PARALLEL_EPISODES = 500  # of each team
CROWD = 80  # agents: of more, fewer episodes are played in parallel
PARALLEL_TEAMS_ON_GPU = 8


def joint_policy(learner: Learner) -> JointPolicy:
    """All agents act by policies of the same learner."""

    def act(
        key: Key[Array, ""], policies: PyTree, worlds: World
    ) -> Float[Array, "agents actions batch"]:
        return learner.act(key, policies, learner.observe(worlds))

    return act


def parallel_episodes(game: Game) -> int:
    """So many that the memory for observations of all agents by all agents does not grow."""
    crowded = max(1.0, game.num_agents / CROWD)
    return max(1, round(PARALLEL_EPISODES / crowded**2))


class Arena:
    """Plays teams: `act(key, team, worlds)` acts for all agents, the batch of worlds last."""

    def __init__(self, game: Game, act: JointPolicy, devices: Sequence[jax.Device] | None = None):
        enable_compilation_cache()
        self.game, self.act = game, act
        self.parallel = parallel_episodes(game)
        self.devices = list(devices or jax.local_devices())
        self.groups = DeviceGroups(len(self.devices))
        on_cpu = self.devices[0].platform == "cpu"
        self.rows = 1 if on_cpu else PARALLEL_TEAMS_ON_GPU  # on each device

    def play(
        self, teams: Iterable[PyTree], key: Key[Array, ""], episodes: int, first: int = 0
    ) -> list[dict[str, np.ndarray]]:
        """For each team the sums over each episode [agents, episodes], by name.

        These are reward, shaping and the game's statistics; its final statistics are
        [1, episodes]. `first` is the number of the first team among all that share the key.
        """
        rounds = -(-episodes // self.parallel)
        at_once = self.rows * self.groups.number
        results: list[dict[str, np.ndarray]] = []
        waiting: list[tuple[PyTree, Array]] = []
        for number, team in enumerate(teams, first):
            team_key = jax.random.fold_in(key, number)
            waiting += [(team, jax.random.fold_in(team_key, i)) for i in range(rounds)]
            while len(waiting) >= at_once:
                results += self._play_rows(waiting[:at_once])
                waiting = waiting[at_once:]
        if waiting:
            results += self._play_rows(waiting)
        return [
            {
                name: np.concatenate([r[name] for r in results[i : i + rounds]], -1)[:, :episodes]
                for name in self.names
            }
            for i in range(0, len(results), rounds)
        ]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the results, in the order of reports."""
        return ("reward", "shaping", *self.game.statistics, *self.game.final_statistics)

    def compile(self, team: PyTree) -> "Arena":
        """Compiles before it is needed, for teams of these shapes."""
        teams, keys = jax.eval_shape(
            lambda: (
                jax.tree.map(lambda x: jnp.zeros((self.rows, *x.shape), x.dtype), team),
                jax.random.split(jax.random.key(0), self.rows),
            )
        )
        for (device,) in dict.fromkeys(self._places):
            sharding = jax.sharding.SingleDeviceSharding(device)
            shapes = jax.tree.map(
                lambda x, s=sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
                (teams, keys),
            )
            self._program.lower(*shapes).compile()
        return self

    def _play_rows(self, rows: list[tuple[PyTree, Array]]) -> list[dict[str, np.ndarray]]:
        """One round of each (team, key): as many as all devices play at once, or fewer."""
        blocks = -(-len(rows) // self.rows)
        filled = rows + rows[-1:] * (blocks * self.rows - len(rows))

        def play(block: int) -> dict[str, np.ndarray]:
            mine = filled[block * self.rows : (block + 1) * self.rows]
            teams = jax.tree.map(lambda *x: np.stack(x), *(team for team, _ in mine))
            keys = jnp.stack([key for _, key in mine])
            (device,) = self._places[block]
            return jax.device_get(self._program(*jax.device_put((teams, keys), device)))

        played = self.groups.run("play", play, blocks)
        return [
            jax.tree.map(lambda x, r=i % self.rows: x[r], played[i // self.rows])
            for i in range(len(rows))
        ]

    @cached_property
    def _places(self) -> list[tuple[jax.Device, ...]]:
        return group_devices(self.devices, len(self.devices))

    @cached_property
    def _program(self) -> Any:
        return jax.jit(jax.vmap(self._round) if self.rows > 1 else self._single)

    def _single(self, teams: PyTree, keys: Key[Array, "1"]) -> dict[str, Array]:
        """A single row runs without a batch axis, which is faster."""
        one = self._round(jax.tree.map(lambda x: x[0], teams), keys[0])
        return jax.tree.map(lambda x: x[None], one)

    def _round(self, team: PyTree, key: Key[Array, ""]) -> dict[str, Array]:
        """Whole episodes of one team, in parallel."""
        game = self.game
        reset, rng = jax.random.split(key)
        worlds = game.reset_batch(jax.random.split(reset, self.parallel))
        zeros = jnp.zeros((game.num_agents, self.parallel))
        sums = dict.fromkeys(("reward", "shaping", *game.statistics), zeros)
        keys = jax.random.split(rng, game.horizon)
        (_, sums), finals = jax.lax.scan(partial(self._step, team), (worlds, sums), keys)
        return sums | {name: values[-1:] for name, values in finals.items()}

    def _step(
        self, team: PyTree, carry: tuple[World, dict[str, Array]], key: Key[Array, ""]
    ) -> tuple[tuple[World, dict[str, Array]], dict[str, Array]]:
        worlds, sums = carry
        action_key, step_key = jax.random.split(key)
        keys = jax.random.split(step_key, self.parallel)
        actions = self.act(action_key, team, worlds)
        worlds, outcome = self.game.step_batch(keys, worlds, actions)
        news = {"reward": outcome.reward, "shaping": outcome.shaping}
        news |= events_of(outcome, self.game.statistics)
        sums = jax.tree.map(jnp.add, sums, news)
        return (worlds, sums), events_of(outcome, self.game.final_statistics)


def events_of(outcome: Outcome, names: Iterable[str]) -> dict[str, Array]:
    """Events by name, as numbers that can be summed."""
    return {name: getattr(outcome.events, name).astype(jnp.float32) for name in names}
