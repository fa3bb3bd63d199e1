"""Progress of a long job: a live bar in a terminal, a line now and then elsewhere."""

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

LINE_SECONDS = 10.0


class EpisodeProgress:
    """Shows stage, episodes, episodes per second, rewards per role and the time left."""

    def __init__(self, console: Console | None = None):
        self.console = console or Console(stderr=True, highlight=False)
        self.stage, self.total = "", 0
        self.history: list[tuple[float, int]] = []
        self.printed = time.monotonic()
        self.task: TaskID | None = None
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("episodes  {task.fields[rate]}  {task.fields[rewards]}  left"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )

    def __enter__(self) -> "EpisodeProgress":
        self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.bar.stop()

    def begin(self, stage: str, total: int) -> None:
        """A bar of its own for each stage: later ones are slower."""
        self.stage, self.total, self.history = stage, total, []
        if self.task is not None:
            self.bar.remove_task(self.task)
        self.task = self.bar.add_task(stage, total=total, rate="compiling", rewards="")

    def counter(self, name: str, each: int) -> Callable[[int, int], None]:
        """Shows games of as many episodes: to be told how many are done, of how many."""

        def watch(done: int, total: int) -> None:
            if self.stage != name:
                self.begin(name, total * each)
            self.show(done * each, {})

        return watch

    def say(self, line: str) -> None:
        self.bar.console.print(line, markup=False, soft_wrap=True)

    def show(self, episodes: int, rewards: dict[str, float]) -> None:
        now = time.monotonic()
        # The first chunk compiles: the rate counts from its end, over the last ones only.
        self.history = [*self.history[-20:], (now, episodes)]
        (then, before), *rest = self.history
        rate = (episodes - before) / (now - then) if rest else 0.0
        pace = f"{rate:,.0f}/s" if rate else "compiling"
        gains = "  ".join(f"{role} {reward:.1f}" for role, reward in rewards.items())
        assert self.task is not None
        self.bar.update(self.task, completed=episodes, rate=pace, rewards=gains)
        due = now - self.printed > LINE_SECONDS or episodes >= self.total
        if not self.console.is_terminal and due and rate:
            self.printed = now
            left = (self.total - episodes) / rate
            self.say(
                f"{self.stage}  {episodes}/{self.total} episodes  {pace}  {gains}  "
                f"{left:.0f} s left"
            )
