"""The command that prints completions for shells."""

from dataclasses import dataclass
from typing import Annotated

from epcx import completion
from epcx.options import Positional


@dataclass(frozen=True)
class Completion:
    """Print a script that completes commands, options and their values in a shell."""

    shell: Annotated[completion.Shell, Positional("SHELL")]
    """bash, zsh or fish."""

    def run(self) -> None:
        print(completion.script(self.shell), end="")
