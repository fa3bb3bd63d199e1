"""What `epcx` can do: one dataclass per command, whose fields are its options."""

from typing import Any

from epcx.commands.compare import Crossplay, Evaluate, Report, Reproduce
from epcx.commands.share import Export, Publish, Teams
from epcx.commands.show import Digest, Games, Lineage, Replay
from epcx.commands.train import Resume, Train

COMMANDS: dict[str, type[Any]] = {
    command.__name__.lower(): command
    for command in (
        Games,
        Train,
        Resume,
        Lineage,
        Evaluate,
        Crossplay,
        Report,
        Reproduce,
        Replay,
        Digest,
        Publish,
        Teams,
        Export,
    )
}
