"""Three implementations of the networks' expensive parts, and the choice between them.

Plain JAX is the reference. Pallas kernels for GPUs and C++ kernels for CPUs do the same faster,
within limits of sizes. Networks call `select`, and know nothing about devices.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import jax
from jaxtyping import Array

from epcx.backends import plain_names
from epcx.networks.kernels import cpu, pallas, plain
from epcx.networks.kernels.pallas_attention import Options as AttentionOptions
from epcx.networks.kernels.pallas_embedding import TILING as EMBEDDING_TILING
from epcx.networks.kernels.pallas_encoder import Options

_precision = ContextVar("precision", default="bf16")


class Kernels(NamedTuple):
    """One implementation; the functions of `plain` show arguments and results.

    Not all gradients are there: if `fused`, none for observations; in Pallas's `embed`, none for
    actions.
    """

    name: str
    fused: bool  # hidden units of pairs of row and entity stay out of memory
    encode: Callable[..., Array]  # an observation: own and entity MLPs, attention, LayerNorm
    embed: Callable[..., Array]  # f(o, a) of all agents
    embed_own: Callable[..., Array]  # f(o, a) of one agent, with a gradient for its action
    attend: Callable[..., list[Array]]  # attention over groups of agents
    encode_relations: Callable[..., Array]  # an observation: tokens, related by self-attention
    relations: str = "XLA"  # the implementation of the last one, by which its time is estimated


XLA = Kernels(
    "XLA",
    False,
    plain.encode,
    plain.embed,
    plain.embed,
    plain.attend,
    plain.encode_relations,
)
CPP = XLA._replace(name="C++", fused=True, encode=cpu.encode, embed=cpu.embed)


def pallas_kernels(encoder: Options, embedding: Options, attention: AttentionOptions) -> Kernels:
    return Kernels(
        "Pallas",
        True,
        partial(pallas.encode, encoder),
        partial(pallas.embed, embedding),
        pallas.embed_own,
        partial(pallas.attend, attention),
        partial(pallas.encode_relations, encoder),
        "Pallas, relations",
    )


def select(
    rows: Any, features: Sequence[int], actions: int = 1, relational: bool = False
) -> Kernels:
    """The implementation for networks of these sizes on this machine.

    `rows` is the number of agents times samples, or a symbol in a portable program; `features` has
    the numbers of features of the agent itself and of each entity type, `actions` is the length of
    an action; who only encodes needs none. `relational` networks are counted apart from others. The
    choice is made while a program is traced.
    """
    traced = plain_names()
    if traced is None:
        return fastest(rows, features, actions)
    if isinstance(rows, int):
        chosen = fastest(rows, features, actions)
        traced.add(chosen.relations if relational else chosen.name)
    return XLA


def fastest(rows: int, features: Sequence[int], actions: int) -> Kernels:
    if pallas.supports(features, actions) and pallas.usable():
        precision = current_precision()
        embedding = Options(precision, tiling=EMBEDDING_TILING)
        return pallas_kernels(Options(precision), embedding, AttentionOptions())
    if cpu.supports(rows, features) and cpu.usable():
        return CPP
    return XLA


def describe() -> str:
    """The implementation that networks get on this machine, such as `C++ (c++ 12.2.0)`."""
    if pallas.usable():
        return "Pallas"
    version = cpu.compiler_version()
    return f"{CPP.name} ({version})" if version else XLA.name


def current_precision() -> str:
    return _precision.get()


@contextlib.contextmanager
def precision(name: str) -> Iterator[None]:
    """Sets the precision of products in GPU programs that are traced within; sums are float32."""
    token = _precision.set(name)
    try:
        with jax.default_matmul_precision("float32" if name == "float32" else None):
            yield
    finally:
        _precision.reset(token)
