"""Where agent sets come from: parents, fitness, and who was promoted."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from epcx.errors import InputError
from epcx.games import Population
from epcx.typed_json import from_json

DAMAGED = "the lineage is damaged, or of another version"


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
        """Every set comes after its parents, which have its role, and every stage has sets."""
        lineage = cls(from_json(content, tuple[Record, ...], DAMAGED))
        roles: dict[str, str] = {}  # of the sets so far
        for record in lineage.records:
            if record.name in roles:
                raise InputError(f"{DAMAGED}: it has two agent sets {record.name!r}")
            try:
                Population.parse(record.population)
            except InputError as error:
                raise InputError(f"{DAMAGED}: {error}") from None
            for parent in record.parents:
                if parent not in roles:
                    raise InputError(f"{DAMAGED}: {record.name!r} comes before {parent!r}")
                if roles[parent] != record.role:
                    raise InputError(f"{DAMAGED}: {record.name!r} has not the role of {parent!r}")
            roles[record.name] = record.role
        stages = sorted({record.stage for record in lineage.records} - {-1})
        if stages != list(range(len(stages))):
            raise InputError(f"{DAMAGED}: its stages are not numbered from 0")
        return lineage
