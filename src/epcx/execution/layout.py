"""How matches are laid out on devices and in time, whether their learner knows about it or not."""

import math
from dataclasses import dataclass

from epcx.learners.learner import Learner, ShardedLearner


@dataclass(frozen=True)
class Layout:
    """Matches on groups of devices: each group trains some at once, and the rest in turns."""

    groups: int  # train different matches in parallel
    shards: int  # devices of a group: each of its matches is sharded over all of them
    concurrent: int  # matches that a group trains at once
    turns: int  # of each group

    @property
    def blocks(self) -> int:
        """Blocks of concurrent matches; block i belongs to group i modulo their number."""
        return self.groups * self.turns


def lay_out(matches: int, devices: int, platform: str, shards: int) -> Layout:
    """At most `shards` devices per match. A GPU trains all its matches at once, a CPU in turns."""
    groups = min(matches, devices)
    shards = 2 ** int(math.log2(min(devices // groups, shards)))
    share = -(-matches // groups)
    return Layout(groups, shards, *((1, share) if platform == "cpu" else (share, 1)))


# Learners that are not a ShardedLearner train on one device per match, as they are


def max_shards(learner: Learner) -> int:
    return learner.max_shards() if isinstance(learner, ShardedLearner) else 1


def with_layout(learner: Learner, platform: str, memory: int, layout: Layout) -> Learner:
    """The learner, prepared for a device with `memory` bytes."""
    if isinstance(learner, ShardedLearner):
        return learner.with_layout(platform, memory, layout.concurrent, layout.shards)
    return learner


def memory_remedy(learner: Learner, limit: int) -> str:
    """The options that keep a match of a Ray task below `limit` bytes."""
    advice = learner.memory_advice(limit) if isinstance(learner, ShardedLearner) else None
    return (
        f"use {advice}, or fewer --matches-per-task" if advice else "use fewer --matches-per-task"
    )
