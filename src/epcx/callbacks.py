"""What a training reports while it runs."""

from typing import Protocol, runtime_checkable


@runtime_checkable
class Callback(Protocol):
    """Receives the progress of a training, between two chunks of it."""

    def on_stage(self, stage: str, total: int) -> None:
        """A stage, or the games for its fitness, begins: `total` episodes per match, or in all."""

    def on_progress(self, episodes: int, rewards: dict[str, float]) -> None:
        """Episodes of the stage so far, and the latest mean reward of each role."""

    def on_message(self, text: str) -> None:
        """A sentence for the user."""


class NullCallback:
    """Ignores everything."""

    def on_stage(self, stage: str, total: int) -> None: ...

    def on_progress(self, episodes: int, rewards: dict[str, float]) -> None: ...

    def on_message(self, text: str) -> None: ...
