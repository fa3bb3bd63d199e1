"""Trains many matches on the devices of this machine, all by the same compiled program.

Devices form groups, which train different matches. Where there are more devices than matches, each
match is sharded over the devices of its group; where there are fewer, matches take turns. What a
match becomes does not depend on the others.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from itertools import islice
from operator import itemgetter
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Shaped

from epcx.errors import InputError
from epcx.execution.device_groups import DeviceGroups, group_devices
from epcx.execution.devices import enable_compilation_cache, format_bytes, free_memory
from epcx.execution.layout import lay_out, max_shards, with_layout
from epcx.learners.learner import SHARD, Learner, RingLearner, state_bytes
from epcx.runs.checkpoint import Arrays, MatchState, Rows
from epcx.runs.weights import named, names_of

SHARDED = PartitionSpec(None, SHARD)  # the first two axes of every array of a state: match, shard
REPLICATED = PartitionSpec()
ROWS_AT_ONCE = 16  # of a ring buffer, on their way to the host
Item = TypeVar("Item")
OTHER_SETTINGS = "the checkpoint is of other settings, or another version"


class MatchTrainer:
    """Trains `matches` matches of one learner, by default on all local devices."""

    def __init__(
        self,
        learner: Learner,
        matches: int,
        devices: Sequence[jax.Device] | None = None,
        free_bytes: int | None = None,
    ):
        """`free_bytes` are free on each device; by default as many as are free now."""
        enable_compilation_cache()
        offered = list(devices or jax.local_devices())
        platform = offered[0].platform
        self.matches = matches
        self.layout = lay_out(matches, len(offered), platform, max_shards(learner))
        self.devices = offered[: self.layout.groups * self.layout.shards]
        self.free_bytes = free_memory(self.devices) if free_bytes is None else free_bytes
        self.learner = with_layout(learner, platform, self.free_bytes, self.layout)
        per_match = state_bytes(self.learner)
        self.bytes_per_device = per_match * self.layout.concurrent * self.layout.turns
        self.groups = DeviceGroups(self.layout.groups)
        self.blocks: list[PyTree] = []  # the states of each block of matches

    def check_memory(self, remedy: Callable[[], str]) -> None:
        """Refuses matches that would not fit; `remedy` names the options that help."""
        if self.bytes_per_device > 0.9 * self.free_bytes:
            raise InputError(
                f"training {self._count} takes {format_bytes(self.bytes_per_device)} on each "
                f"device, of which {format_bytes(self.free_bytes)} are free: {remedy()}"
            )

    def describe(self) -> str:
        """What trains where, and the memory it takes."""
        number, kind = len(self.devices), self.devices[0].platform.upper()
        return (
            f"{self._count} on {number} {kind} device{'s' * (number > 1)}; "
            f"training states take {format_bytes(self.bytes_per_device)} per device"
        )

    @property
    def _count(self) -> str:
        return f"{self.matches} match{'es' * (self.matches > 1)}"

    @property
    def _rows(self) -> Int[np.ndarray, "blocks concurrent"]:
        """The matches of each block, by their rows; spare places repeat the last one."""
        places = np.arange(self.layout.blocks * self.layout.concurrent)
        return np.minimum(places, self.matches - 1).reshape(self.layout.blocks, -1)

    def start(
        self, key: Key[Array, ""], agents: PyTree = None, ids: Sequence[int] | None = None
    ) -> None:
        """Initial states, of the given agents [matches, agents, ...] or of new ones.

        The random numbers of a match depend on the key and its id; by default ids are 0, 1, ...
        """
        numbers = np.arange(self.matches) if ids is None else np.asarray(ids)

        def start(block: int) -> PyTree:
            rows = self._rows[block]
            keys = jax.vmap(partial(jax.random.fold_in, key))(numbers[rows])
            chosen = None if agents is None else jax.tree.map(itemgetter(rows), agents)
            return self._program(block).start(keys, chosen)

        self.blocks = self.groups.run("start", start, self.layout.blocks)

    def advance(self, updates: int) -> dict[str, Float[np.ndarray, "matches agents"]]:
        """Trains all matches for a number of updates; their metrics over that time."""

        def advance(block: int) -> PyTree:
            # The old state is donated: keep the new one at once.
            advance = self._program(block).advance
            self.blocks[block], metrics = advance(self.blocks[block], np.int32(updates))
            return jax.device_get(metrics)

        return self._join(self.groups.run("advance", advance, self.layout.blocks))

    def agents(self) -> PyTree:
        """The agents of all matches [matches, agents, ...], as NumPy arrays."""
        return self._of_states(self._agents_of)

    def diverged(self) -> Bool[np.ndarray, "matches"]:
        """Which matches have stopped learning, because weights would not be finite."""
        return self._of_states(self._diverged_of)

    def compile(self, start: bool = True, new_agents: bool = True) -> "MatchTrainer":
        """Compiles `advance` before it is needed, and `start` with new agents or given ones."""
        # Groups after the first find the program in the compilation cache.
        for program in dict.fromkeys(self.programs):
            program.compile(start, new_agents)
        return self

    # Checkpoints

    def snapshot(self, since: int, updates: int) -> list[MatchState]:
        """What each match has changed since an earlier number of updates, as copies.

        Named arrays [shards, ...]; of a ring buffer, if the learner has one, the rows that have
        changed, and with `since` 0 all that were ever written.
        """
        rows = ring_rows(self.learner, since, updates)
        states = []
        for block in range(self.layout.blocks):
            arrays, changes = self._program(block).snapshot(self.blocks[block], rows)
            left = self.matches - block * self.layout.concurrent
            for row in range(min(self.layout.concurrent, left)):
                mine, *changed = (
                    {name: x[row] for name, x in some.items()}
                    for some in (arrays, *(change.arrays for change in changes))
                )
                numbers = [change.rows for change in changes]
                states.append(MatchState(mine, list(map(Rows, numbers, changed))))
        return states

    def restore(self, matches: Sequence[MatchState]) -> None:
        """Continues from whole states, on any devices over which a match has as many shards."""
        shards = {x.shape[0] for match in matches for x in match.arrays.values()}
        if len(matches) != self.matches or shards != {self.layout.shards}:
            raise InputError(
                f"the checkpoint has {len(matches)} matches on {max(shards, default=0)} devices "
                f"each, but here it would be {self.matches} on {self.layout.shards} each: resume "
                "with as many devices as before"
            )
        self.blocks = [
            self._program(block).restore([matches[i] for i in rows])
            for block, rows in enumerate(self._rows)
        ]

    # Blocks of matches

    @cached_property
    def programs(self) -> list["CompiledMatches"]:
        """Those of all groups."""
        groups = group_devices(self.devices, self.layout.groups)
        concurrent = self.layout.concurrent
        distinct = {group: CompiledMatches(self.learner, group, concurrent) for group in groups}
        return [distinct[group] for group in groups]

    def _program(self, block: int) -> "CompiledMatches":
        return self.programs[block % self.layout.groups]

    @cached_property
    def _agents_of(self) -> Callable[[PyTree], PyTree]:
        return jax.jit(jax.vmap(jax.vmap(self.learner.agents)))

    @cached_property
    def _diverged_of(self) -> Callable[[PyTree], PyTree]:
        return jax.jit(jax.vmap(jax.vmap(self.learner.diverged)))

    def _of_states(self, each: Callable[[PyTree], PyTree]) -> Any:
        """What `each` finds in the states of a block; it is the same on all shards of a match."""
        found = jax.device_get([each(state) for state in self.blocks])
        return jax.tree.map(lambda x: x[:, 0], self._join(found))

    def _join(self, blocks: list[PyTree]) -> Any:
        return jax.tree.map(lambda *x: np.concatenate(x)[: self.matches], *blocks)


class CompiledMatches:
    """The program of a group of devices: some matches at once, each sharded over all of them."""

    def __init__(self, learner: Learner, devices: Sequence[jax.Device], matches: int):
        self.learner, self.matches = learner, matches
        self.mesh = Mesh(np.array(devices), (SHARD,))

    @cached_property
    def start(self) -> Any:
        def start(key: Array, agents: PyTree) -> PyTree:
            first, second = jax.random.split(key)
            return self.learner.start(
                second, self.learner.init(first) if agents is None else agents
            )

        def body(keys: Array, agents: PyTree) -> PyTree:
            return add_shard_axis(self._each_match(start, keys, agents))

        return self._jit(body, (REPLICATED, REPLICATED), SHARDED)

    @cached_property
    def advance(self) -> Any:
        def body(state: PyTree, updates: Array) -> PyTree:
            state, metrics = self._each_match(
                lambda state: self.learner.advance(state, updates),
                jax.tree.map(lambda x: x[:, 0], state),
            )
            return add_shard_axis(state), metrics

        return self._jit(body, (SHARDED, REPLICATED), (SHARDED, REPLICATED), donate_argnums=0)

    def compile(self, start: bool, new_agents: bool) -> None:
        state = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self._sharding),
            self._state_shapes,
        )
        lowered = [self.advance.lower(state, jax.ShapeDtypeStruct((), jnp.int32))]
        if start:
            init = jax.vmap(self.learner.init)
            agents = None if new_agents else jax.eval_shape(init, self._key_shapes)
            lowered.append(self.start.lower(self._key_shapes, agents))
        with ThreadPoolExecutor(len(lowered)) as pool:
            list(pool.map(lambda program: program.compile(), lowered))

    def snapshot(self, state: PyTree, rows: Int[np.ndarray, "rows"]) -> tuple[Arrays, list[Rows]]:
        """Copies of named arrays [matches, shards, ...], and of some rows of the ring buffer."""
        arrays = named(keys_to_data(state))
        ring = [arrays.pop(name) for name in self._ring_names]
        slices = [
            rows[i : i + ROWS_AT_ONCE] for i in range(0, len(rows) if ring else 0, ROWS_AT_ONCE)
        ]
        copies = one_ahead(begin_copy(ring, some) for some in slices)
        changed = []
        for some, copy in zip(slices, copies, strict=True):
            found = [np.asarray(x)[:, :, : len(some)] for x in copy]
            changed.append(Rows(some, dict(zip(self._ring_names, found, strict=True))))
        # A state is donated to the next update: what stays here must not share its memory.
        return {name: np.array(x) for name, x in arrays.items()}, changed

    def restore(self, matches: list[MatchState]) -> PyTree:
        """The state of matches, from named arrays [shards, ...] of each."""
        shapes = self._state_shapes
        expected = named(keys_to_data(shapes))
        ring = set(self._ring_names)

        def leaf(name: str) -> Array:
            whole = np.zeros(expected[name].shape, expected[name].dtype)
            for number, match in enumerate(matches):
                if name in ring:
                    fill_rows(whole[number], [(rows, x.get(name)) for rows, x in match.rows])
                else:
                    fill(whole[number], match.arrays.get(name))
            return jax.device_put(whole, self._sharding)

        with ThreadPoolExecutor() as pool:
            leaves = list(pool.map(leaf, expected))
        if any(match.arrays.keys() != expected.keys() - ring for match in matches):
            raise InputError(OTHER_SETTINGS)
        return data_to_keys(jax.tree.unflatten(jax.tree.structure(shapes), leaves), shapes)

    @cached_property
    def _ring_names(self) -> list[str]:
        """The names of the arrays of a ring buffer."""
        if not isinstance(self.learner, RingLearner):
            return []
        return jax.tree.leaves(self.learner.ring(names_of(keys_to_data(self._state_shapes))))

    @cached_property
    def _key_shapes(self) -> Any:
        return jax.eval_shape(lambda: jax.random.split(jax.random.key(0), self.matches))

    @cached_property
    def _state_shapes(self) -> PyTree:
        return jax.eval_shape(self.start, self._key_shapes, None)

    @property
    def _sharding(self) -> NamedSharding:
        """Of the arrays of a state."""
        return NamedSharding(self.mesh, SHARDED)

    def _jit(self, body: Any, in_specs: Any, out_specs: Any, **options: Any) -> Any:
        return jax.jit(
            jax.shard_map(
                body, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
            ),
            **options,
        )

    def _each_match(self, function: Callable[..., PyTree], *stacks: PyTree) -> Any:
        """`function` of each match; a single one runs without a batch axis, which is faster."""
        if self.matches > 1:
            return jax.vmap(function)(*stacks)
        one = function(*jax.tree.map(lambda x: x[0], stacks))
        return jax.tree.map(lambda x: x[None], one)


@jax.jit
def take_rows(ring: list[Array], rows: Int[Array, "rows"]) -> list[Array]:
    """Rows of arrays [matches, shards, rows, ...]."""
    return [x[:, :, rows] for x in ring]


def begin_copy(ring: list[Array], rows: Int[np.ndarray, "rows"]) -> list[Array]:
    """Some rows, and others that fill them up, on their way to the host."""
    padded = np.pad(rows, (0, ROWS_AT_ONCE - len(rows)), mode="edge")
    taken = take_rows(ring, padded)
    for x in taken:
        x.copy_to_host_async()
    return taken


def one_ahead(items: Iterable[Item]) -> Iterator[Item]:
    """The same items; the next one is begun before one is used."""
    begun = iter(items)
    for item in islice(begun, 1):
        for after in begun:
            yield item
            item = after
        yield item


def ring_rows(learner: Learner, since: int, updates: int) -> Int[np.ndarray, "rows"]:
    if not isinstance(learner, RingLearner):
        return np.zeros(0, int)
    return learner.ring_rows(since, updates)


def fill_rows(
    ring: Shaped[np.ndarray, "shards rows *shape"],
    changes: Sequence[tuple[Int[np.ndarray, "_"], np.ndarray | None]],
) -> None:
    """Writes rows that were saved one after the other."""
    for rows, found in changes:
        if found is None or found.shape[:2] != (len(ring), len(rows)):
            raise InputError(OTHER_SETTINGS)
        begin = 0
        for block in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
            end = begin + len(block)
            if end > begin:
                fill(ring[:, block[0] : block[-1] + 1], found[:, begin:end])
            begin = end


def fill(place: np.ndarray, found: np.ndarray | None) -> None:
    """Writes an array that was saved, if it is of the right kind."""
    if found is None or found.shape != place.shape or found.dtype != place.dtype:
        raise InputError(OTHER_SETTINGS)
    place[...] = found


def add_shard_axis(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: x[:, None], tree)


def keys_to_data(tree: PyTree) -> PyTree:
    """With random keys as plain numbers, which can be stored."""
    return jax.tree.map(lambda x: key_data(x) if is_key(x) else x, tree)


def data_to_keys(tree: PyTree, like: PyTree) -> PyTree:
    return jax.tree.map(
        lambda x, like: jax.random.wrap_key_data(x) if is_key(like) else x, tree, like
    )


def is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def key_data(key: Any) -> Any:
    if isinstance(key, jax.ShapeDtypeStruct):
        return jax.eval_shape(jax.random.key_data, key)
    return jax.random.key_data(key)
