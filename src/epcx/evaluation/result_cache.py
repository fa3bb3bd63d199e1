"""Results of games that were played, one JSON line each, so that none is played twice."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from epcx.errors import InputError, RunError, reason
from epcx.runs.files import append_json_line, json_digest, read_json_lines


class ResultCache:
    """Results by a digest of who played what; kept in a file, or in memory without one."""

    def __init__(self, path: Path | None = None):
        self.path = path
        self.known: dict[str, Any] = {}
        if path is not None and path.exists():
            try:
                rows = read_json_lines(path)
            except OSError as error:
                raise InputError(f"{path} cannot be read: {reason(error)}") from None
            self.known = {row["digest"]: row["result"] for row in rows if is_intact(row)}

    def get(self, description: dict[str, Any], play: Callable[[], Any]) -> Any:
        """The result of the game described, which `play` computes if it is not known."""
        name = json_digest(description)
        if name not in self.known:
            self.known[name] = play()
            self._write({"digest": name, **description, "result": self.known[name]})
        return self.known[name]

    def _write(self, row: dict[str, Any]) -> None:
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            append_json_line(self.path, {**row, "seal": json_digest(row)})
        except OSError as error:
            raise RunError(f"{self.path} cannot be written: {reason(error)}") from None


def is_intact(row: dict[str, Any]) -> bool:
    """Whether a line is as it was written; others are not used, and their games played again."""
    content = {name: value for name, value in row.items() if name != "seal"}
    return {"digest", "result", "seal"} <= row.keys() and row["seal"] == json_digest(content)
