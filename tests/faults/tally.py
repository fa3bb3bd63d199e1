"""What was tried, and what held."""

from dataclasses import dataclass, field


@dataclass
class Tally:
    """One kind of fault: how often it was tried, and a line for each time that it did harm."""

    fault: str
    promise: str
    tried: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, case: str, failure: str | None) -> None:
        """One case; `failure` says what was wrong."""
        self.tried += 1
        if failure:
            self.failures.append(f"{case}: {failure}")

    @property
    def held(self) -> int:
        return self.tried - len(self.failures)
