"""Progress of a long computation: a live bar in a terminal, a line every 10 seconds elsewhere."""

import time

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from epcx.errors import printable

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

    def on_stage(self, stage: str, total: int) -> None:
        """Starts a new bar, since later stages are slower."""
        self.stage, self.total, self.history = stage, total, []
        if self.task is not None:
            self.bar.remove_task(self.task)
        self.task = self.bar.add_task(stage, total=total, rate="compiling", rewards="")

    def on_message(self, text: str) -> None:
        self.bar.console.print(printable(text), markup=False, soft_wrap=True)

    def on_progress(self, episodes: int, rewards: dict[str, float]) -> None:
        now = time.monotonic()
        # A moving rate that leaves out the first chunk, which includes compilation.
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
            self.on_message(
                f"{self.stage}  {episodes}/{self.total} episodes  {pace}  {gains}  "
                f"{left:.0f} s left"
            )
