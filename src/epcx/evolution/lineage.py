"""Where agent sets come from: parents, fitness, and who was promoted."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

from epcx.errors import InputError


@dataclass(frozen=True)
class Record:
    """One agent set that came out of a stage."""

    name: str  # such as sheep-2.4: of match 4 in stage 2
    role: str
    stage: int  # from 0; -1: taken over from another run
    population: str
    match: int
    parents: tuple[str, ...] = ()
    fitness: float | None = None  # none: not measured, or not a number
    opponents: tuple[str, ...] = ()  # in the pairings behind the fitness
    rank: int | None = None  # 0 is the fittest; none: not promoted
    diverged: bool = False


def name_of(role: str, stage: int, match: int) -> str:
    return f"{role}-{stage}.{match}" if stage >= 0 else f"{role}-init.{match}"


@dataclass(frozen=True)
class Lineage:
    """All agent sets of a run, in the order of stages, roles and matches."""

    records: tuple[Record, ...] = ()

    def __add__(self, records: Iterable[Record]) -> "Lineage":
        return Lineage((*self.records, *records))

    def of(self, stage: int, role: str) -> list[Record]:
        """By match."""
        return [record for record in self.records if (record.stage, record.role) == (stage, role)]

    def promoted(self, stage: int, role: str) -> list[Record]:
        """Best first."""
        found = [record for record in self.of(stage, role) if record.rank is not None]
        return sorted(found, key=lambda record: record.rank or 0)

    def find(self, name: str) -> Record:
        for record in self.records:
            if record.name == name:
                return record
        raise InputError(f"the lineage is damaged: it has no agent set {name!r}")

    @property
    def stages(self) -> int:
        return 1 + max((record.stage for record in self.records), default=-1)

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(record) for record in self.records]

    @classmethod
    def from_json(cls, content: Any) -> "Lineage":
        names = {field.name for field in fields(Record)}
        if not isinstance(content, list) or not all(
            isinstance(row, dict)
            and row.keys() == names
            and isinstance(row["parents"], list | tuple)
            and isinstance(row["opponents"], list | tuple)
            for row in content
        ):
            raise InputError("the lineage is damaged, or of another version")
        for row in content:
            row |= {name: tuple(row[name]) for name in ("parents", "opponents")}
        return cls(tuple(Record(**row) for row in content))
