"""IPPO and MAPPO beside JaxMARL's own IPPO, in one process, on the same game.

    git clone https://github.com/FLAIROx/JaxMARL
    python -m benchmarks.ppo --jaxmarl JaxMARL

JaxMARL's script `baselines/IPPO/ippo_ff_mpe.py` trains on the game through the adapter, with its
own settings: policies that share weights, MLPs of flat observations. Everybody gets as many
environment steps; then the trained policies play the same number of episodes. Compilation is left
out. What the script imports for settings, plots and logs (and distrax, for its categorical
distribution) is replaced by stand-ins.
"""

import importlib.util
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import yaml
from jaxtyping import Array, Float, Key

from epcx import games, learners, options
from epcx.adapters.jaxmarl import JaxMARLGame
from epcx.errors import InputError
from epcx.games import Game, World
from epcx.runs.provenance import describe

SCRIPT = Path("baselines/IPPO/ippo_ff_mpe.py")
SETTINGS = Path("baselines/IPPO/config/ippo_ff_mpe.yaml")
Act = Callable[[Key[Array, ""], World], Float[Array, "agents actions batch"]]


@dataclass(frozen=True)
class Benchmark:
    """Train with both, and compare rewards and steps per second."""

    jaxmarl: Path
    """A clone of JaxMARL."""

    game: str = "food-collection"
    """The game, with one role: JaxMARL's script has one network."""

    population: str = "3"
    """Its population."""

    episodes: int = 50_000
    """How many are trained."""

    learners: tuple[str, ...] = ("ippo", "mappo")
    """Of epcx."""

    peer_rate: float | None = None
    """The learning rate of JaxMARL's IPPO, if not its own."""

    seeds: int = 1
    """How many trainings each."""

    played: int = 2_000
    """Episodes of the comparison."""

    json: bool = False
    """Print JSON only."""

    def run(self) -> None:
        game = games.make(self.game, self.population)
        rows = []
        for seed in range(self.seeds):
            for name in ("jaxmarl ippo", *self.learners):
                train = self.peer if name == "jaxmarl ippo" else self.ours
                act, seconds = train(name, game, jax.random.key(seed))
                rows.append(
                    {
                        "learner": name,
                        "seed": seed,
                        "reward": round(reward(game, act, self.played), 2),
                        "steps_per_second": round(self.episodes * game.horizon / seconds),
                    }
                )
                if not self.json:
                    row = rows[-1]
                    print(
                        f"{name}, seed {seed}: reward {row['reward']}, "
                        f"{row['steps_per_second']:,} steps/s",
                        flush=True,
                    )
        if self.json:
            print(json.dumps({"machine": describe(), "trainings": rows}, indent=2))

    def ours(self, name: str, game: Game, key: Key[Array, ""]) -> tuple[Act, float]:
        learner: Any = learners.make(name, game)
        updates = learner.updates(self.episodes)
        learner = learner.with_layout(jax.default_backend(), 0, 1, 1).with_updates(updates)
        first, second = jax.random.split(key)
        state = jax.jit(lambda: learner.start(first, learner.init(second)))()
        state, seconds = timed(learner.advance, state, jnp.asarray(updates))
        policies = learner.policies(state[0].agents)
        return lambda key, worlds: learner.act(key, policies, learner.observe(worlds)), seconds

    def peer(self, name: str, game: Game, key: Key[Array, ""]) -> tuple[Act, float]:
        module, settings = load_script(self.jaxmarl)
        settings["TOTAL_TIMESTEPS"] = self.episodes * game.horizon
        if self.peer_rate is not None:
            settings["LR"] = self.peer_rate
        with mock.patch("jaxmarl.make", return_value=JaxMARLGame(game)):
            train = module.make_train(settings)
            out, seconds = timed(train, key)
        params = out["runner_state"][0].params
        network = module.ActorCritic(game.num_actions, activation=settings["ACTIVATION"])

        def act(key: Key[Array, ""], worlds: World) -> Float[Array, "agents actions batch"]:
            seen = jax.vmap(game.observe_flat, -1)(worlds)  # batch, agents, features
            actions = network.apply(params, seen)[0].sample(seed=key)
            return jax.nn.one_hot(actions, game.num_actions).transpose(1, 2, 0)

        return act, seconds


def timed(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """Its result, and the seconds that it took, compiled."""
    program = jax.jit(function).lower(*arguments).compile()
    begin = time.perf_counter()
    result = jax.block_until_ready(program(*arguments))
    return result, time.perf_counter() - begin


def reward(game: Game, act: Act, episodes: int) -> float:
    """Of an agent in an episode, without shaping: the mean over agents and episodes."""

    @jax.jit
    def play(key: Key[Array, ""]) -> Float[Array, ""]:
        def step(worlds: World, key: Key[Array, ""]) -> tuple[World, Float[Array, ""]]:
            first, second = jax.random.split(key)
            keys = jax.random.split(second, episodes)
            worlds, outcome = game.step_batch(keys, worlds, act(first, worlds))
            return worlds, outcome.reward.mean()

        first, second = jax.random.split(key)
        worlds = game.reset_batch(jax.random.split(first, episodes))
        return jax.lax.scan(step, worlds, jax.random.split(second, game.horizon))[1].sum()

    return float(play(jax.random.key(12345)))


def load_script(clone: Path) -> tuple[Any, dict[str, Any]]:
    """JaxMARL's script as a module, and its settings."""
    path = clone / SCRIPT
    if not path.is_file():
        raise InputError(f"{clone} is not a clone of JaxMARL: it has no {SCRIPT}")
    specification = importlib.util.spec_from_file_location("ippo_ff_mpe", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules.update(stand_ins())
    specification.loader.exec_module(module)
    return module, yaml.safe_load((clone / SETTINGS).read_text())


def stand_ins() -> dict[str, Any]:
    """For what decides nothing about the training, and for one class of distrax."""
    hydra, omegaconf, wandb, distrax = map(ModuleType, ("hydra", "omegaconf", "wandb", "distrax"))
    hydra.main = lambda **_: lambda function: function  # type: ignore[attr-defined]
    omegaconf.OmegaConf = SimpleNamespace()  # type: ignore[attr-defined]
    wandb.log = lambda _: None  # type: ignore[attr-defined]
    distrax.Categorical = Categorical  # type: ignore[attr-defined]
    return {"hydra": hydra, "omegaconf": omegaconf, "wandb": wandb, "distrax": distrax}


class Categorical:
    def __init__(self, logits: Array):
        self.log_probs = jax.nn.log_softmax(logits)

    def sample(self, seed: Key[Array, ""]) -> Array:
        return jax.random.categorical(seed, self.log_probs)

    def log_prob(self, actions: Array) -> Array:
        return jnp.take_along_axis(self.log_probs, actions[..., None], -1)[..., 0]

    def entropy(self) -> Array:
        return -(jnp.exp(self.log_probs) * self.log_probs).sum(-1)


if __name__ == "__main__":
    options.run(Benchmark)
