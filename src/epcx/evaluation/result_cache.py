"""Results of games that were played, one JSON line each, so that none is played twice."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from epcx.errors import InputError, RunError, reason
from epcx.runs.files import json_digest


class ResultCache:
    """Results by a digest of who played what; kept in a file, or in memory without one."""

    def __init__(self, path: Path | None = None):
        self.path = path
        self.known: dict[str, Any] = {}
        self.begin = ""
        if path is not None and path.exists():
            try:
                text = path.read_text(errors="replace")
            except OSError as error:
                raise InputError(f"{path} cannot be read: {reason(error)}") from None
            self.begin = "" if text.endswith("\n") else "\n"
            for line in text.splitlines():
                try:
                    row = json.loads(line)
                    self.known[row["digest"]] = row["result"]
                except (ValueError, TypeError, KeyError):
                    continue  # a line that was being written when the machine stopped

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
            with open(self.path, "a") as file:
                file.write(self.begin + json.dumps(row) + "\n")
                self.begin = ""
        except OSError as error:
            raise RunError(f"{self.path} cannot be written: {reason(error)}") from None
