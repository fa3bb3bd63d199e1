import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests import environment  # noqa: F401 - before JAX is imported
from tests.faults import cluster, disk, inputs, kills
from tests.faults.tally import Tally

PARTS = {
    "inputs": (inputs.run, 1000),
    "kills": (kills.run, 100),
    "disk": (disk.run, 70),
    "ray": (cluster.run, 50),
}


def main() -> None:
    """Runs all parts, prints a table of what was tried and what held, and fails if any did not."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=main.__doc__)
    parser.add_argument("--seed", type=int, default=0, help="decides all faults")
    parser.add_argument("--scale", type=float, default=1.0, help="how many of the faults")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    tallies: list[Tally] = []
    for part in options.parts:
        run, number = PARTS[part]
        begin = time.monotonic()

        def say(text: str, part: str = part, begin: float = begin) -> None:
            print(f"{part}, {time.monotonic() - begin:.0f} s: {text}", file=sys.stderr, flush=True)

        with tempfile.TemporaryDirectory() as folder:
            found = run(Path(folder), options.seed, max(1, round(number * options.scale)), say)
        tallies += found
        say(f"{sum(tally.held for tally in found)} of {sum(t.tried for t in found)} held")
    print_table(tallies, options.seed)
    sys.exit(any(tally.failures for tally in tallies))


def print_table(tallies: list[Tally], seed: int) -> None:
    """As Markdown, for the documentation, with failures below it."""
    print(f"| fault (seed {seed}) | tried | held | what is promised |")
    print("| --- | ---: | ---: | --- |")
    for tally in tallies:
        print(f"| {tally.fault} | {tally.tried:,} | {tally.held:,} | {tally.promise} |")
    tried, held = sum(t.tried for t in tallies), sum(t.held for t in tallies)
    print(f"| all | {tried:,} | {held:,} | |")
    for tally in tallies:
        for failure in tally.failures:
            print(f"{tally.fault}: {failure}")


if __name__ == "__main__":
    main()
