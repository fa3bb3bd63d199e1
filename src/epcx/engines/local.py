"""Trains many matches on the devices of this machine, as one compiled program.

Devices form a grid, match by part: rows of it train different matches, and where there are more
devices than matches, the devices of a row share one. Matches that do not fit at once take turns.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from epcx.engines.devices import free_memory, in_words, keep_compiled_programs
from epcx.errors import InputError
from epcx.learners.learner import PART, Learner
from epcx.runs.weights import named

MATCH = "match"
SPREAD = PartitionSpec(MATCH, PART)  # the first two axes of every array of a state


@dataclass(frozen=True)
class Layout:
    """How matches are laid out on devices, and in time."""

    rows: int  # devices side by side with different matches
    parts: int  # devices that share a match
    at_once: int  # matches on a device at a time
    turns: int

    @property
    def per_turn(self) -> int:
        return self.rows * self.at_once


def lay_out(matches: int, devices: int, platform: str, most_parts: int) -> Layout:
    """On a GPU a device takes all its matches at once; on a CPU, one after the other."""
    rows = min(matches, devices)
    parts = min(devices // rows, most_parts)
    parts = 2 ** int(math.log2(parts))
    share = -(-matches // rows)
    return Layout(rows, parts, *((1, share) if platform == "cpu" else (share, 1)))


class LocalEngine:
    """Trains `matches` matches of one learner; all of them on all local devices."""

    def __init__(
        self,
        learner: Learner,
        matches: int,
        devices: Sequence[Any] | None = None,
        free: int | None = None,
    ):
        """`free` bytes are free on each device; by default those that are now."""
        keep_compiled_programs()
        offered = list(devices or jax.local_devices())
        self.matches = matches
        platform = offered[0].platform
        self.layout = lay_out(matches, len(offered), platform, learner.most_parts())
        self.devices = offered[: self.layout.rows * self.layout.parts]
        self.free = free_memory(self.devices) if free is None else free
        self.learner = learner.fitted(platform, self.free, self.layout.at_once, self.layout.parts)
        self.bytes = self.learner.memory() * self.layout.at_once * self.layout.turns  # per device
        self.turns: list[Any] = []

    def check_memory(self, remedy: Callable[[], str]) -> None:
        """`remedy` names the options that make the replay smaller; it is asked only then."""
        if self.bytes > 0.9 * self.free:
            raise InputError(
                f"training {self._many} takes {in_words(self.bytes)} on each device, of which "
                f"{in_words(self.free)} are free: {remedy()}"
            )

    @property
    def _many(self) -> str:
        return f"{self.matches} match{'es' * (self.matches > 1)}"

    def in_words(self) -> str:
        """What will happen where, and the memory it takes."""
        kind = self.devices[0].platform.upper()
        number = len(self.devices)
        return (
            f"{self._many} on {number} {kind} device{'s' * (number > 1)}; "
            f"replay and networks take {in_words(self.bytes)} per device"
        )

    @property
    def _numbers(self) -> np.ndarray:
        """The matches of each turn; spare places repeat the last one."""
        places = np.arange(self.layout.turns * self.layout.per_turn)
        return np.minimum(places, self.matches - 1).reshape(self.layout.turns, -1)

    def start(self, key: Array, agents: Any | None = None) -> None:
        """Fresh states: of the agents given, stacked over matches, or of new ones."""
        self.turns = []
        for rows in self._numbers:
            keys = jax.vmap(partial(jax.random.fold_in, key))(rows)
            chosen = None if agents is None else jax.tree.map(itemgetter(rows), agents)
            self.turns.append(self._start(keys, chosen))

    def advance(self, updates: int) -> dict[str, np.ndarray]:
        """Trains all matches for a number of updates; metrics [matches, N]."""
        metrics = []
        for i, state in enumerate(self.turns):  # the old state is gone: keep the new one at once
            self.turns[i], news = self._advance(state, jnp.int32(updates))
            metrics.append(news)
        return self._gather(metrics)

    def agents(self) -> Any:
        """The agents of all matches [matches, N, ...], as NumPy arrays."""
        return self._gather([self._first_part(self.learner.agents(s)) for s in self.turns])

    def diverged(self) -> np.ndarray:
        """Which matches have stopped learning [matches]."""
        return self._gather([self._first_part(self.learner.diverged(s)) for s in self.turns])

    def compile(self, start: bool = True, fresh: bool = True) -> "LocalEngine":
        """Ahead of time: `advance`, and `start` with fresh agents or given ones."""
        state = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self._place),
            self._state_shapes(),
        )
        programs = [self._advance.lower(state, jax.ShapeDtypeStruct((), jnp.int32))]
        if start:
            agents = None if fresh else jax.eval_shape(jax.vmap(self.learner.init), self._keys)
            programs.append(self._start.lower(self._keys, agents))
        with ThreadPoolExecutor(len(programs)) as pool:
            list(pool.map(lambda program: program.compile(), programs))
        return self

    # Checkpoints

    def snapshot(self) -> Iterator[dict[str, np.ndarray]]:
        """All that training needs, match by match: named arrays [parts, ...]."""
        for turn, state in enumerate(self.turns):
            arrays = {name: np.asarray(x) for name, x in named(without_keys(state)).items()}
            for row in range(min(self.layout.per_turn, self.matches - turn * self.layout.per_turn)):
                yield {name: x[row] for name, x in arrays.items()}

    def restore(self, matches: Sequence[dict[str, np.ndarray]]) -> None:
        """Goes on from a snapshot, on any devices that spread a match over as many parts."""
        shapes = self._state_shapes()
        parts = {x.shape[0] for arrays in matches for x in arrays.values()}
        if len(matches) != self.matches or parts != {self.layout.parts}:
            raise InputError(
                f"the checkpoint has {len(matches)} matches on {max(parts, default=0)} devices "
                f"each, but here it would be {self.matches} on {self.layout.parts} each: resume "
                "with as many devices as before"
            )

        def state(rows: list[dict[str, np.ndarray]]) -> Any:
            expected = named(without_keys(shapes))
            kinds = {name: (x.shape[1:], x.dtype) for name, x in expected.items()}
            if any({k: (x.shape, x.dtype) for k, x in row.items()} != kinds for row in rows):
                raise InputError("the checkpoint is of other settings, or another version")
            arrays = [np.stack([row[name] for row in rows]) for name in expected]
            leaves = [jax.device_put(x, self._place) for x in arrays]
            return with_keys(jax.tree.unflatten(jax.tree.structure(shapes), leaves), shapes)

        self.turns = [state([matches[i] for i in turn]) for turn in self._numbers]

    # The compiled programs

    @cached_property
    def mesh(self) -> Mesh:
        grid = np.array(self.devices).reshape(self.layout.rows, self.layout.parts)
        return Mesh(grid, (MATCH, PART))

    @property
    def _place(self) -> NamedSharding:
        """Where the arrays of a state are."""
        return NamedSharding(self.mesh, SPREAD)

    @cached_property
    def _start(self) -> Any:
        def start(key: Array, agents: Any) -> Any:
            first, second = jax.random.split(key)
            return self.learner.start(
                second, self.learner.init(first) if agents is None else agents
            )

        def body(keys: Array, agents: Any) -> Any:
            return _with_part_axis(self._each(start, keys, agents))

        return self._compile(body, (PartitionSpec(MATCH), PartitionSpec(MATCH)), SPREAD)

    @cached_property
    def _keys(self) -> Any:
        """The shape of the keys of a turn."""
        return jax.eval_shape(lambda: jax.random.split(jax.random.key(0), self.layout.per_turn))

    def _state_shapes(self) -> Any:
        return jax.eval_shape(self._start, self._keys, None)

    @cached_property
    def _advance(self) -> Any:
        def body(state: Any, updates: Array) -> Any:
            state, metrics = self._each(
                lambda state: self.learner.advance(state, updates), self._first_part(state)
            )
            return _with_part_axis(state), metrics

        return self._compile(
            body, (SPREAD, PartitionSpec()), (SPREAD, PartitionSpec(MATCH)), donate_argnums=0
        )

    def _compile(self, body: Any, in_specs: Any, out_specs: Any, **options: Any) -> Any:
        return jax.jit(
            jax.shard_map(
                body, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
            ),
            **options,
        )

    def _each(self, function: Any, *stacks: Any) -> Any:
        """`function` of each match on this device; a single one is not worth a batch axis."""
        if self.layout.at_once > 1:
            return jax.vmap(function)(*stacks)
        one = function(*jax.tree.map(lambda x: x[0], stacks))
        return jax.tree.map(lambda x: x[None], one)

    @staticmethod
    def _first_part(tree: Any) -> Any:
        return jax.tree.map(lambda x: x[:, 0], tree)

    def _gather(self, turns: list[Any]) -> Any:
        host = jax.device_get(turns)
        return jax.tree.map(lambda *x: np.concatenate(x)[: self.matches], *host)


def _with_part_axis(tree: Any) -> Any:
    return jax.tree.map(lambda x: x[:, None], tree)


def without_keys(tree: Any) -> Any:
    """With the plain numbers of random keys, which can be stored."""
    return jax.tree.map(lambda x: _numbers_of(x) if _is_key(x) else x, tree)


def with_keys(tree: Any, like: Any) -> Any:
    return jax.tree.map(
        lambda x, like: jax.random.wrap_key_data(x) if _is_key(like) else x, tree, like
    )


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _numbers_of(key: Any) -> Any:
    if isinstance(key, jax.ShapeDtypeStruct):
        return jax.eval_shape(jax.random.key_data, key)
    return jax.random.key_data(key)
