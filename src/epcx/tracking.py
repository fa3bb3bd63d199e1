"""TensorBoard and Weights & Biases follow a training, beside the files that a run always has."""

import importlib
import io
import json
import os
import secrets
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from operator import itemgetter
from types import ModuleType, TracebackType
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from epcx.errors import InputError, Notice, choice
from epcx.runs.run import TRACKING, RunFolder, read_json
from epcx.typed_json import from_json

Name = Literal["tensorboard", "wandb"]
Row = Mapping[str, Any]
PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb"}


class Ending(NamedTuple):
    """How a finished training is shown: its result, and an episode of its best team if possible."""

    result: dict[str, Any]
    page: str | None  # HTML that plays the episode
    strip: bytes | None  # some of its frames, as PNG


@runtime_checkable
class Tracker(Protocol):
    """Follows one training."""

    def log(self, rows: Sequence[Row]) -> None:
        """Lines as in metrics.jsonl; one without a `match` is about its stage as a whole.

        `episodes`, which count along a lineage, are the axis of all curves.
        """

    def show(self, ending: Ending) -> None:
        """At the end of a training that has finished."""

    def close(self, finished: bool) -> None:
        """Writes what is still to be written."""


class TensorBoard:
    """Event files in the run's folder: a curve per stage and match, under the name of a metric."""

    def __init__(self, run: RunFolder, about: "Tracked", resumed: bool):
        self.folder = run.path / "tensorboard"
        self.writers: dict[str, Any] = {}
        if not resumed:
            shown = json.dumps(run.settings, indent=2)
            self._writer(".", 0).add_text("config", f"```\n{shown}\n```", 0)

    def log(self, rows: Sequence[Row]) -> None:
        for row in rows:
            name = f"{row['population']}/{row['match']}" if "match" in row else "."
            writer = self._writer(name, row["episodes"])
            for metric, value in numbers(row):
                writer.add_scalar(metric, value, row["episodes"])

    def show(self, ending: Ending) -> None:
        episodes = ending.result["episodes_along_a_lineage"]
        if ending.strip is not None:
            from PIL import Image  # takes time to import

            pixels = np.asarray(Image.open(io.BytesIO(ending.strip)).convert("RGB"))
            self._writer(".", episodes).add_image("replay", pixels, episodes, dataformats="HWC")

    def close(self, finished: bool) -> None:
        for writer in self.writers.values():
            writer.close()

    def _writer(self, name: str, episodes: int) -> Any:
        """What a resumed training will log again is dropped."""
        if name not in self.writers:
            make = package("tensorboard").SummaryWriter
            place = str(self.folder / name)
            self.writers[name] = make(place, flush_secs=10, purge_step=episodes)
        return self.writers[name]


class WeightsAndBiases:
    """One run of wandb: metrics as means over matches, and of each match; online or offline."""

    def __init__(self, run: RunFolder, about: "Tracked", resumed: bool):
        self.wandb: Any = package("wandb")
        self.run = self.wandb.init(
            project=os.environ.get("WANDB_PROJECT", "epcx"),
            name=os.environ.get("WANDB_NAME", run.path.name),
            id=about.wandb_id,
            resume="allow" if resumed else None,
            config=run.settings,
            dir=str(run.path),
            settings=self.wandb.Settings(console="off"),
        )
        self.run.define_metric("episodes", hidden=True)
        self.run.define_metric("*", step_metric="episodes")

    def log(self, rows: Sequence[Row]) -> None:
        for (population, episodes), some in groupby(rows, itemgetter("population", "episodes")):
            values: dict[str, list[float]] = {}
            point: dict[str, Any] = {"episodes": episodes}
            for row in some:
                for metric, value in numbers(row):
                    values.setdefault(metric, []).append(value)
                    if "match" in row and metric != "seconds":
                        point[f"{population}/match-{row['match']}/{metric}"] = value
            self.run.log(point | {metric: float(np.mean(x)) for metric, x in values.items()})

    def show(self, ending: Ending) -> None:
        self.run.summary.update(ending.result)
        if ending.page is not None:
            artifact = self.wandb.Artifact(f"replay-{self.run.id}", type="replay")
            with artifact.new_file("replay.html") as file:
                file.write(ending.page)
            self.run.log_artifact(artifact)
            episodes = ending.result["episodes_along_a_lineage"]
            page = self.wandb.Html(ending.page, inject=False)
            self.run.log({"episodes": episodes, "replay": page})

    def close(self, finished: bool) -> None:
        self.run.finish(exit_code=0 if finished else 1)


TRACKERS: dict[str, Callable[[RunFolder, "Tracked", bool], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
}


@dataclass(frozen=True)
class Tracked:
    """What a run keeps, so that a resumed training is followed as before."""

    trackers: tuple[str, ...]
    wandb_id: str


class Tracking:
    """The trackers of one training: one that fails is left out from then on, with a notice."""

    def __init__(self, names: Iterable[str] = ()):
        """Refuses trackers whose package is missing."""
        self.names = tuple(dict.fromkeys(names))
        self.active: dict[str, Tracker] = {}
        self.finished = False
        for name in self.names:
            choice("tracker", name, Name)
            package(name)

    def start(self, run: RunFolder) -> None:
        """Follows a new run by the trackers that were named, and a resumed one as before."""
        resumed = not self.names
        about = Tracked(self.names, os.environ.get("WANDB_RUN_ID") or secrets.token_hex(4))
        if resumed:
            with Failing(self.active, TRACKING):
                found = read_json(run.path, TRACKING) or asdict(about)
                about = from_json(found, Tracked, f"{run.path / TRACKING} is damaged")
        else:
            run.write(TRACKING, asdict(about))
        for name in about.trackers:
            with Failing(self.active, name):
                choice("tracker", name, Name)
                self.active[name] = TRACKERS[name](run, about, resumed)

    def log(self, rows: Sequence[Row]) -> None:
        self._each(lambda tracker: tracker.log(rows))

    def show(self, make: Callable[[], Ending]) -> None:
        """The end of a finished training; `make` is called only if somebody follows it."""
        self.finished = True
        if self.active:
            ending = make()
            self._each(lambda tracker: tracker.show(ending))

    def __enter__(self) -> "Tracking":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._each(lambda tracker: tracker.close(self.finished))

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self.active.items()):
            with Failing(self.active, name):
                call(tracker)


class Failing:
    """A training goes on without a tracker that raises an exception within."""

    def __init__(self, active: dict[str, Tracker], name: str):
        self.active, self.name = active, name

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self.active.pop(self.name, None)
        first = (str(error).splitlines() or [""])[0]
        warnings.warn(
            f"{self.name} follows this training no longer: {type(error).__name__}: {first}",
            Notice,
            stacklevel=2,
        )
        return True


def package(name: str) -> ModuleType:
    try:
        return importlib.import_module(PACKAGES[name])
    except ImportError:
        raise InputError(
            f"{name} needs the package {PACKAGES[name]}: pip install 'epcx[track]'"
        ) from None


def numbers(row: Row) -> list[tuple[str, float]]:
    """Metrics, not counts and names; what is not finite cannot be drawn."""
    return [(k, v) for k, v in row.items() if isinstance(v, float) and np.isfinite(v)]
