"""Rewards and statistics of episodes, as they are reported."""

import math

import numpy as np
from jaxtyping import Float

from epcx.games import Game

REWARDS = ("reward", "shaping")
Summary = dict[str, dict[str, dict[str, float]]]  # role, statistic, mean and (standard) error


def summarise(game: Game, played: dict[str, np.ndarray]) -> Summary:
    """Per role and statistic: the mean over the episodes, and its standard error.

    Teams are summed over their agents in games with opponents; in others, as in the paper, the
    numbers are means per agent. Survival is the share of the role that lives to the end.
    """
    summary: Summary = {}
    for role, members in game.members.items():
        team = {name: game.score(played[name][members], role) for name in REWARDS}
        team |= {name: game.total(played[name][members]) for name in game.statistics}
        if "died" in game.statistics:
            team["survival"] = 1 - played["died"][members].mean(0)
        team |= {name: played[name][0] for name in game.final_statistics}
        summary[role] = {name: mean_and_error(values) for name, values in team.items()}
    return summary


def mean_and_error(values: Float[np.ndarray, "episodes"]) -> dict[str, float]:
    error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return {"mean": float(values.mean()), "error": float(error)}
