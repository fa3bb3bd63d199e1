"""A run: a folder with everything one training produced.

config.json        what was asked for, with versions, machine and commit
metrics.jsonl      a line per match and log interval
agents/0/sheep.safetensors   the agent sets of match 0, one file per role
result.json        how it ended
tensorboard/       the same metrics, if asked for
"""

import json
import math
from pathlib import Path
from typing import Any

from epcx.errors import InputError, reason
from epcx.runs.files import write_bytes
from epcx.runs.provenance import describe
from epcx.runs.weights import load_weights, save_weights

CONFIG = "config.json"
METRICS = "metrics.jsonl"
RESULT = "result.json"


class Run:
    """The folder of a run; `create` makes it, `open` reads it."""

    def __init__(self, path: Path, config: dict[str, Any]):
        self.path = path
        self.config = config
        self.boards: dict[int, Any] = {}
        self.result: dict[str, Any] = {}

    @classmethod
    def create(cls, path: Path, config: dict[str, Any], tensorboard: bool = False) -> "Run":
        """A new folder; one that exists is never touched."""
        if tensorboard:
            tensorboard_writer()
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            raise InputError(
                f"run folder {path} exists already: choose another --name, or remove it"
            ) from None
        except OSError as error:
            raise InputError(f"run folder {path} cannot be made: {reason(error)}") from None
        run = cls(path, config)
        run.write(CONFIG, {**config, "made_with": describe()})
        if tensorboard:
            for match in range(config["matches"]):
                place = str(path / "tensorboard" / str(match))
                run.boards[match] = tensorboard_writer()(place, flush_secs=10)
        return run

    @classmethod
    def open(cls, path: Path) -> "Run":
        try:
            config = json.loads((path / CONFIG).read_text())
        except OSError as error:
            why = reason(error)
            raise InputError(f"{path} is not a run: cannot read its {CONFIG} ({why})") from None
        except (ValueError, RecursionError):
            raise InputError(f"{path / CONFIG} is damaged: it is not JSON") from None
        if not isinstance(config, dict):
            raise InputError(f"{path / CONFIG} is damaged: it holds no settings")
        return cls(path, config)

    def setting(self, name: str) -> Any:
        if name not in self.config:
            raise InputError(f"{self.path / CONFIG} is damaged: it has no '{name}'")
        return self.config[name]

    def write(self, name: str, content: dict[str, Any]) -> None:
        write_bytes(self.path / name, (json.dumps(content, indent=2) + "\n").encode())

    def log(self, rows: list[dict[str, Any]]) -> None:
        """Appends lines to the metrics; numbers that are not finite become null."""
        with open(self.path / METRICS, "a") as file:
            for row in rows:
                finite = {k: v if is_finite(v) else None for k, v in row.items()}
                file.write(json.dumps(finite) + "\n")
        for row in rows:
            if board := self.boards.get(row["match"]):
                for name, value in row.items():
                    if isinstance(value, float):
                        board.add_scalar(name, value, row["episodes"])

    def finish(self, result: dict[str, Any]) -> None:
        self.result = result
        self.write(RESULT, result)
        for board in self.boards.values():
            board.close()

    def metrics(self) -> list[dict[str, Any]]:
        with open(self.path / METRICS) as file:
            return [json.loads(line) for line in file]

    def save_agents(self, match: int, role: str, tree: Any, about: dict[str, str]) -> None:
        path = self.weights(match, role)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_weights(path, tree, about)

    def load_agents(self, match: int, role: str, like: Any, about: dict[str, str]) -> Any:
        return load_weights(self.weights(match, role), like, about)

    def weights(self, match: int, role: str) -> Path:
        return self.path / "agents" / str(match) / f"{role}.safetensors"


def is_finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def tensorboard_writer() -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise InputError(
            "tensorboard needs the package tensorboardX: pip install 'epcx[track]'"
        ) from None
    return SummaryWriter
