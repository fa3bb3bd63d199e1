"""What `epcx` can do: one dataclass per command, whose fields are its options."""

from typing import Annotated

from tyro.conf import subcommand

from epcx.commands.compare import Crossplay, Evaluate, Report, Reproduce
from epcx.commands.show import Digest, Games, Lineage, Publish, Replay
from epcx.commands.train import Resume, Train

Command = (
    Annotated[Games, subcommand("games")]
    | Annotated[Train, subcommand("train")]
    | Annotated[Resume, subcommand("resume")]
    | Annotated[Lineage, subcommand("lineage")]
    | Annotated[Evaluate, subcommand("evaluate")]
    | Annotated[Crossplay, subcommand("crossplay")]
    | Annotated[Report, subcommand("report")]
    | Annotated[Reproduce, subcommand("reproduce")]
    | Annotated[Replay, subcommand("replay")]
    | Annotated[Digest, subcommand("digest")]
    | Annotated[Publish, subcommand("publish")]
)

__all__ = ["Command", "Train"]
