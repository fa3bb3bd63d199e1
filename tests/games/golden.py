"""The recorded trajectories of the authors' environments, in this package's order of agents."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from epcx import games

FOLDER = Path(__file__).parent.parent / "golden"
GAME = {
    "grassland": "grassland",
    "adversarial": "adversarial-battle",
    "food_collect": "food-collection",
}
NAMES = sorted(path.stem for path in FOLDER.glob("*.npz"))


@dataclass(frozen=True)
class Golden:
    """`arrays[name]` is [steps, ...] over all episodes, agents in the order of the population."""

    game: games.ParticleGame
    order: np.ndarray  # our index -> recorded index: adversaries come first in the recordings
    arrays: dict[str, np.ndarray]
    first: dict[str, np.ndarray]  # per episode

    @property
    def time(self) -> np.ndarray:
        """Steps played before each recorded step."""
        return np.tile(np.arange(self.game.horizon), len(self.first["seed"]))

    def by_episode(self, values: np.ndarray) -> np.ndarray:
        """[steps over all episodes, ...] as [episodes, steps, ...]."""
        return values.reshape(-1, self.game.horizon, *values.shape[1:])


def load(name: str) -> Golden:
    with np.load(FOLDER / f"{name}.npz") as file:
        data = {key: file[key] for key in file.files}
    meta = json.loads(str(data.pop("meta")))
    good, adversaries = meta["n_good"], meta["n_adv"]
    population = f"{good}-{adversaries}" if adversaries else str(good)
    game = games.make(GAME[meta["scenario"]], population, food=meta["n_food"])
    order = np.r_[adversaries : adversaries + good, :adversaries].astype(int)
    agents = {"pos", "vel", "live", "action", "obs", "reward", "done", "info"}
    steps, first = {}, {}
    for key, value in data.items():
        if key in ("seed", "kind", "obs_reset"):
            first[key] = value[:, order] if key == "obs_reset" else value
            continue
        value = value.reshape(-1, *value.shape[2:])
        steps[key] = value[:, order] if key.split("_")[0] in agents else value
    return Golden(game, order, steps, first)
