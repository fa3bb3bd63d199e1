"""Policies for use without epcx: weights for NumPy, or a program for JAX."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export
from jaxtyping import Array, Float, PyTree, UInt

from epcx import backends
from epcx.errors import InputError, choice, reason
from epcx.evaluation.tournament import add_batch_axis
from epcx.games import options_of
from epcx.learners.learner import greedy_option
from epcx.runs.files import write_bytes
from epcx.runs.weights import named
from epcx.teams import Team, act_of

Inputs = Literal["observations", "worlds"]
FORMAT = "epcx policies 1"
PLATFORMS = ("cpu", "cuda")
Named = dict[str, Any]  # the arrays of a pytree, by the names of their places


def export(team: Team, path: Path, inputs: Inputs = "observations", greedy: bool = False) -> None:
    """Writes what the ending of the name says: .npz has weights, .jaxexport a program.

    `inputs` and `greedy` are for programs: what they take, and whether their actions are samples
    or the most probable ones.
    """
    choice("inputs", inputs, Inputs)
    writers: dict[str, Callable[[], bytes]] = {
        ".npz": lambda: to_npz(team),
        ".jaxexport": lambda: to_jax_export(team, inputs, greedy),
    }
    kind = path.suffix.lower()
    if kind not in writers:
        raise InputError(f"cannot export to '{path}': its name must end with .npz or .jaxexport")
    if kind == ".npz" and (greedy or inputs != "observations"):
        raise InputError(f"greedy and inputs are for programs: name a file .jaxexport, not {path}")
    content = writers[kind]()
    try:
        write_bytes(path, content)
    except OSError as error:
        raise InputError(f"cannot export to {path}: {reason(error)}") from None


def to_npz(team: Team) -> bytes:
    """The weights of each role's policies [members, ...] by name, and in `about` what they are."""
    arrays = {
        f"{role}.{name}": np.asarray(x)
        for role, player in team.players.items()
        for name, x in arrays_of(player.agents).items()
    }
    file = io.BytesIO()
    np.savez(file, about=np.array(json.dumps(describe(team))), **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def describe(team: Team) -> dict[str, Any]:
    game = team.game
    return {
        "format": FORMAT,
        "game": game.reference,
        "population": str(game.population),
        "options": options_of(game),
        "stage": team.stage,
        "learner": team.source.run.setting("learner"),
        "architecture": team.learner.architecture,
        "roles": {
            role.name: {"agents": count, "actions": role.num_actions}
            for role, count in zip(game.roles, game.population.counts, strict=True)
        },
    }


def to_jax_export(team: Team, inputs: Inputs = "observations", greedy: bool = False) -> bytes:
    """A serialised program: (seed, inputs) to the actions of each role [batch, members, actions].

    Inputs are the arrays of a batch of worlds, by name; or, by role and name, those of what its
    agents observe. The batch comes first, and may have any size.
    """
    try:
        import flatbuffers  # noqa: F401 - which JAX needs for it
    except ImportError:
        raise InputError(
            "a program needs the package flatbuffers: pip install 'epcx[export]'"
        ) from None
    act, like = (act_in_worlds if inputs == "worlds" else act_on_observations)(team, greedy)
    (batch,) = jax_export.symbolic_shape("batch")
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct((batch, *x.shape[:-1]), x.dtype), like)
    seed = jax.ShapeDtypeStruct((), jnp.uint32)
    try:
        with backends.plain_only():
            program = jax_export.export(jax.jit(act), platforms=PLATFORMS)(seed, shapes)
        return bytes(program.serialize())
    except jax.errors.InconclusiveDimensionOperation:
        raise InputError(
            f"{team.game.name} with learner {team.learner.name} cannot be exported: its functions "
            "do not work for batches of any size"
        ) from None


Act = Callable[[UInt[Array, ""], PyTree], dict[str, Float[Array, "batch members actions"]]]


def act_in_worlds(team: Team, greedy: bool) -> tuple[Act, Named]:
    """The actions in worlds, and the shapes of a batch of one, which is the last axis."""
    world = jax.eval_shape(lambda: add_batch_axis(team.game.reset(jax.random.key(0))))
    acts = {role: act_of(team.learner, role, greedy) for role in team.players}

    def act(seed: UInt[Array, ""], given: Named) -> dict[str, Array]:
        worlds = tree_of(given, world)
        return {
            role: jnp.moveaxis(acts[role](key, team.players[role].agents, worlds), -1, 0)
            for role, key in keys_of(team, seed).items()
        }

    return act, arrays_of(world)


def act_on_observations(team: Team, greedy: bool) -> tuple[Act, dict[str, Named]]:
    """As `act_in_worlds`, given what the agents of each role observe."""
    learner, how = team.learner, greedy_option(team.learner, greedy)
    world = jax.eval_shape(lambda: add_batch_axis(team.game.reset(jax.random.key(0))))
    seen = {
        role: jax.eval_shape(lambda worlds, role=role: learner.observe(worlds, role), world)
        for role in team.players
    }

    def act(seed: UInt[Array, ""], given: dict[str, Named]) -> dict[str, Array]:
        actions = {}
        for role, key in keys_of(team, seed).items():
            views, policies = tree_of(given[role], seen[role]), team.players[role].agents
            chosen = learner.act(key, policies, views, role, **how)
            actions[role] = jnp.moveaxis(chosen, -1, 0)
        return actions

    return act, {role: arrays_of(tree) for role, tree in seen.items()}


def arrays_of(tree: PyTree) -> Named:
    """The arrays of a pytree by the names of their places; one that has none is `array`."""
    return {name or "array": x for name, x in named(tree).items()}


def tree_of(given: Named, like: PyTree) -> PyTree:
    """A pytree of arrays by name, whose batch becomes the last axis."""
    arrays = [jnp.moveaxis(given[name], 0, -1) for name in arrays_of(like)]
    return jax.tree.unflatten(jax.tree.structure(like), arrays)


def keys_of(team: Team, seed: UInt[Array, ""]) -> dict[str, Array]:
    """One for each role, as `Team.act` splits them."""
    keys = jax.random.split(jax.random.key(seed), len(team.players))
    return dict(zip(team.players, keys, strict=True))
