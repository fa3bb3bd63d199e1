"""Trains many matches on the devices of this machine, each by the same compiled program.

Devices form lanes, which train different matches. Where there are more devices than matches, the
devices of a lane share one. Matches that do not fit at once take turns. Lanes know nothing of each
other: what a match becomes does not depend on how many there are.
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
from epcx.engines.lanes import Lanes, lanes_of
from epcx.errors import InputError
from epcx.learners.learner import PART, Learner
from epcx.runs.weights import named

SPREAD = PartitionSpec(None, PART)  # the first two axes of every array of a state: match, part
EVERYWHERE = PartitionSpec()


@dataclass(frozen=True)
class Layout:
    """How matches are laid out on devices, and in time."""

    lanes: int  # side by side, with different matches
    parts: int  # devices of a lane, which share its matches
    at_once: int  # matches in a lane at a time
    turns: int

    @property
    def blocks(self) -> int:
        """What trains at once in a lane: block i is in lane i modulo their number."""
        return self.lanes * self.turns


def lay_out(matches: int, devices: int, platform: str, most_parts: int) -> Layout:
    """On a GPU a device takes all its matches at once; on a CPU, one after the other."""
    lanes = min(matches, devices)
    parts = min(devices // lanes, most_parts)
    parts = 2 ** int(math.log2(parts))
    share = -(-matches // lanes)
    return Layout(lanes, parts, *((1, share) if platform == "cpu" else (share, 1)))


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
        self.devices = offered[: self.layout.lanes * self.layout.parts]
        self.free = free_memory(self.devices) if free is None else free
        self.learner = learner.fitted(platform, self.free, self.layout.at_once, self.layout.parts)
        self.bytes = self.learner.memory() * self.layout.at_once * self.layout.turns  # per device
        self.lanes = Lanes(self.layout.lanes)
        self.blocks: list[Any] = []  # the states of the matches of each block

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
        """The matches of each block; spare places repeat the last one."""
        places = np.arange(self.layout.blocks * self.layout.at_once)
        return np.minimum(places, self.matches - 1).reshape(self.layout.blocks, -1)

    def start(
        self, key: Array, agents: Any | None = None, numbers: Sequence[int] | None = None
    ) -> None:
        """Fresh states: of the agents given, stacked over matches, or of new ones.

        `numbers` are those of the matches among all that share the key; by default they are all.
        """
        names = np.arange(self.matches) if numbers is None else np.asarray(numbers)

        def start(block: int) -> Any:
            rows = self._numbers[block]
            keys = jax.vmap(partial(jax.random.fold_in, key))(names[rows])
            chosen = None if agents is None else jax.tree.map(itemgetter(rows), agents)
            return self._program(block).start(keys, chosen)

        self.blocks = self._in_lanes("start", start)

    def advance(self, updates: int) -> dict[str, np.ndarray]:
        """Trains all matches for a number of updates; metrics [matches, N]."""

        def advance(block: int) -> Any:
            # The old state is gone with the call: keep the new one at once.
            advance = self._program(block).advance
            self.blocks[block], metrics = advance(self.blocks[block], np.int32(updates))
            return jax.device_get(metrics)

        return self._join(self._in_lanes("advance", advance))

    def agents(self) -> Any:
        """The agents of all matches [matches, N, ...], as NumPy arrays."""
        return self._of_states(self.learner.agents)

    def diverged(self) -> np.ndarray:
        """Which matches have stopped learning [matches]."""
        return self._of_states(self.learner.diverged)

    def compile(self, start: bool = True, fresh: bool = True) -> "LocalEngine":
        """Ahead of time: `advance`, and `start` with fresh agents or given ones."""
        # Lanes after the first find the program among those that are kept.
        for program in dict.fromkeys(self.programs):
            program.compile(start, fresh)
        return self

    # Checkpoints

    def snapshot(self) -> Iterator[dict[str, np.ndarray]]:
        """All that training needs, match by match: named arrays [parts, ...]."""
        for block, state in enumerate(self.blocks):
            arrays = {name: np.asarray(x) for name, x in named(without_keys(state)).items()}
            left = self.matches - block * self.layout.at_once
            for row in range(min(self.layout.at_once, left)):
                yield {name: x[row] for name, x in arrays.items()}

    def restore(self, matches: Sequence[dict[str, np.ndarray]]) -> None:
        """Goes on from a snapshot, on any devices that spread a match over as many parts."""
        parts = {x.shape[0] for arrays in matches for x in arrays.values()}
        if len(matches) != self.matches or parts != {self.layout.parts}:
            raise InputError(
                f"the checkpoint has {len(matches)} matches on {max(parts, default=0)} devices "
                f"each, but here it would be {self.matches} on {self.layout.parts} each: resume "
                "with as many devices as before"
            )
        self.blocks = [
            self._program(block).place([matches[i] for i in rows])
            for block, rows in enumerate(self._numbers)
        ]

    # Lanes

    @cached_property
    def programs(self) -> list["Program"]:
        """Those of all lanes."""
        lanes = lanes_of(self.devices, self.layout.lanes)
        made = {lane: Program(self.learner, lane, self.layout.at_once) for lane in lanes}
        return [made[lane] for lane in lanes]

    def _program(self, block: int) -> "Program":
        return self.programs[block % self.layout.lanes]

    def _in_lanes(self, name: str, function: Callable[[int], Any]) -> list[Any]:
        return self.lanes.run(name, function, self.layout.blocks)

    def _of_states(self, function: Callable[[Any], Any]) -> Any:
        found = jax.device_get([function(state) for state in self.blocks])
        return jax.tree.map(lambda x: x[:, 0], self._join(found))

    def _join(self, blocks: list[Any]) -> Any:
        return jax.tree.map(lambda *x: np.concatenate(x)[: self.matches], *blocks)


class Program:
    """What is compiled for a lane: a number of matches side by side, on some devices."""

    def __init__(self, learner: Learner, devices: Sequence[Any], matches: int):
        self.learner, self.matches = learner, matches
        self.mesh = Mesh(np.array(devices), (PART,))

    @cached_property
    def start(self) -> Any:
        def start(key: Array, agents: Any) -> Any:
            first, second = jax.random.split(key)
            return self.learner.start(
                second, self.learner.init(first) if agents is None else agents
            )

        def body(keys: Array, agents: Any) -> Any:
            return _with_part_axis(self._each(start, keys, agents))

        return self._compiled(body, (EVERYWHERE, EVERYWHERE), SPREAD)

    @cached_property
    def advance(self) -> Any:
        def body(state: Any, updates: Array) -> Any:
            state, metrics = self._each(
                lambda state: self.learner.advance(state, updates),
                jax.tree.map(lambda x: x[:, 0], state),
            )
            return _with_part_axis(state), metrics

        return self._compiled(body, (SPREAD, EVERYWHERE), (SPREAD, EVERYWHERE), donate_argnums=0)

    def compile(self, start: bool, fresh: bool) -> None:
        state = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self._place),
            self._state_shapes,
        )
        programs = [self.advance.lower(state, jax.ShapeDtypeStruct((), jnp.int32))]
        if start:
            agents = None if fresh else jax.eval_shape(jax.vmap(self.learner.init), self._keys)
            programs.append(self.start.lower(self._keys, agents))
        with ThreadPoolExecutor(len(programs)) as pool:
            list(pool.map(lambda program: program.compile(), programs))

    def place(self, rows: list[dict[str, np.ndarray]]) -> Any:
        """The state of matches from named arrays [parts, ...], on the devices."""
        shapes = self._state_shapes
        expected = named(without_keys(shapes))
        kinds = {name: (x.shape[1:], x.dtype) for name, x in expected.items()}
        if any({k: (x.shape, x.dtype) for k, x in row.items()} != kinds for row in rows):
            raise InputError("the checkpoint is of other settings, or another version")
        arrays = [np.stack([row[name] for row in rows]) for name in expected]
        leaves = [jax.device_put(x, self._place) for x in arrays]
        return with_keys(jax.tree.unflatten(jax.tree.structure(shapes), leaves), shapes)

    @cached_property
    def _keys(self) -> Any:
        """The shape of the keys of the matches."""
        return jax.eval_shape(lambda: jax.random.split(jax.random.key(0), self.matches))

    @cached_property
    def _state_shapes(self) -> Any:
        return jax.eval_shape(self.start, self._keys, None)

    @property
    def _place(self) -> NamedSharding:
        """Where the arrays of a state are."""
        return NamedSharding(self.mesh, SPREAD)

    def _compiled(self, body: Any, in_specs: Any, out_specs: Any, **options: Any) -> Any:
        return jax.jit(
            jax.shard_map(
                body, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
            ),
            **options,
        )

    def _each(self, function: Any, *stacks: Any) -> Any:
        """`function` of each match; a single one is not worth a batch axis."""
        if self.matches > 1:
            return jax.vmap(function)(*stacks)
        one = function(*jax.tree.map(lambda x: x[0], stacks))
        return jax.tree.map(lambda x: x[None], one)


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
