"""Bad input: command lines that nobody should type, and runs of which a part is damaged.

Each is answered in one sentence or by the right result, and nothing that was there is changed.
"""

import contextlib
import itertools
import random
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import epcx
from epcx import trainer
from epcx.config import TrainConfig
from epcx.execution.local import LocalExecutor
from epcx.learners import MADDPGConfig
from epcx.runs.run import DIGESTS, LOCK, RunFolder
from tests.factories import RecordingCallback, make_run
from tests.faults import command_lines
from tests.faults.command_server import Answer, CommandServer
from tests.faults.damages import damage_file, damage_folder, files_of
from tests.faults.tally import Tally

SMALL = {"batch_size": 16, "buffer_size": 400, "learning_starts": 100, "num_envs": 4}
INTERRUPTED = TrainConfig(
    "food-collection",
    "mean-field",
    population=("1",),
    episodes=12,
    snapshots=2,
    learner_config=MADDPGConfig(network="mean-field", **SMALL),
)
# What is done with a folder `run` that is damaged: a finished run, one that was interrupted, and a
# recorded replay. The numbers say how often, since some of it takes long.
DIGEST, RESUME, PUBLISH = "digest run --json", "resume run", "publish run --out out --episodes 2"
COMMANDS = {
    "finished": {
        "evaluate run --episodes 2 --json": 3,
        "crossplay run random --episodes 2 --json": 2,
        "replay run --out out.json": 3,
        "report run --episodes 1 --out out": 0.5,
        "lineage run": 3,
        "lineage run --json": 2,
        DIGEST: 3,
        PUBLISH: 4,
        "export run --out out.npz": 1,
        "resume run --json": 2,
        "train food-collection --preset smoke --init-from run --population 2 --dry-run": 2,
    },
    "interrupted": {RESUME: 4, "evaluate run --episodes 2": 1, "lineage run": 1, DIGEST: 1},
    "recorded": {
        "replay run/episode.json --out out.html": 2,
        "replay run/episode.json --out out.json": 2,
        "replay run/episode.json --out out.png": 1,
        "replay run/episode.json --out out.gif": 1,
    },
}
SHARES = {"finished": 12, "interrupted": 4, "recorded": 2}
MADE = {RESUME: "run", PUBLISH: "out"}  # runs
UNSEALED = ("config.json", "lineage.json", "metrics.jsonl", "result.json")
COMPARED = (".json", ".jsonl", ".csv")
RUN_NAMES = ["run"] * 9 + ["r\x1b[2Jn", "r\nn", "[/x] r'\"n@", "%s \u7f8a $x_{$", "r\udcffn"]
MAX_READ = 2**30  # bytes
Content = dict[str, Any]


def run(folder: Path, seed: int, number: int, say: Callable[[str], None]) -> list[Tally]:
    """Tries `number` cases, all decided by the seed, in an empty folder."""
    promise = "one sentence and exit code 2, or"
    lines = Tally("a wrong command line", f"{promise} a success; no run is changed")
    files = Tally("a damaged run", f"{promise} the result of the intact one; nothing is changed")
    rng = random.Random(seed)
    with CommandServer(folder) as server:
        bench = Bench(folder / "cases", make_sources(folder / "sources"), server)
        for case in range(number):
            tally, attempt = (files, bench.try_damage) if case % 2 else (lines, bench.try_line)
            what, failure = attempt(random.Random(rng.getrandbits(64)))
            tally.add(f"seed {seed}, case {case}, {what}", failure)
            if case % 100 == 99:
                say(f"{case + 1} of {number} cases tried")
    return [lines, files]


def make_sources(folder: Path) -> dict[str, Path]:
    """A finished run, one that was interrupted after two checkpoints, and a recorded replay."""
    sources = {kind: folder / kind for kind in COMMANDS}
    make_run(sources["finished"], "food-collection", "epc", ["1", "2"], snapshots=1, **SMALL)
    reports = itertools.count()

    def interrupt() -> None:
        if next(reports) == 3:
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        callback = RecordingCallback(interrupt)
        trainer.train(INTERRUPTED, sources["interrupted"], LocalExecutor(), callback, 0.0)
    sources["recorded"].mkdir()
    epcx.replay("predator-prey", out=sources["recorded"] / "episode.json")
    return sources


class Bench:
    """Where one case is tried after the other, each with a copy of what it needs."""

    def __init__(self, folder: Path, sources: dict[str, Path], server: CommandServer):
        self.folder, self.sources, self.server = folder, sources, server
        self.place = folder / "case"
        self.intact: dict[tuple[str, str], Any] = {}

    def try_line(self, rng: random.Random) -> tuple[str, str | None]:
        """A wrong command line, and what is wrong with the answer."""
        name = rng.choice(RUN_NAMES)
        arguments = [
            name + word[3:] if word.partition("@")[0].partition("/")[0] == "run" else word
            for word in command_lines.command_line(rng)
        ]
        with self.case("finished", name):
            command_lines.make_folder(self.place)
            failure, _ = self.answer(arguments, name)
        return shown(arguments), failure

    def try_damage(self, rng: random.Random) -> tuple[str, str | None]:
        """A command over something damaged, and what is wrong with the answer."""
        kind = rng.choices(list(SHARES), list(SHARES.values()))[0]
        command = rng.choices(list(COMMANDS[kind]), list(COMMANDS[kind].values()))[0]
        with self.case(kind, "run"):
            name, done = damage(rng, self.place / "run")
            sealed = is_sealed(self.place / "run", name)
            mine = "" if command == RESUME else "run"  # which goes on in its own folder
            failure, answer = self.answer(command.split(), mine)
            result = self.result(command, answer) if answer.code == 0 and not failure else None
        if result and sealed and command != DIGEST:
            same = result == self.intact_result(kind, command)
            failure = None if same else "another result than that of the intact run"
        return f"{name}: {done}, {shown(command.split())}", failure

    @contextlib.contextmanager
    def case(self, kind: str, name: str) -> Iterator[None]:
        """A folder of its own with a copy of a run; afterwards nothing is beside it."""
        shutil.copytree(self.sources[kind], self.place / name)
        try:
            yield
            beside = [path.name for path in self.folder.iterdir() if path != self.place]
            assert not beside, f"{beside} are outside the folder of the case"
        finally:
            shutil.rmtree(self.place)

    def answer(self, arguments: list[str], run: str) -> tuple[str | None, Answer]:
        """What is wrong with the answer to a command line, which must not change `run`."""
        before = content(self.place)
        answer = self.server.run(arguments, self.place)
        return complaint(answer) or harm(answer, before, content(self.place), run), answer

    def intact_result(self, kind: str, command: str) -> Any:
        if (kind, command) not in self.intact:
            with self.case(kind, "run"):
                failure, answer = self.answer(command.split(), "")
                assert not failure, failure
                self.intact[kind, command] = self.result(command, answer)
        return self.intact[kind, command]

    def result(self, command: str, answer: Answer) -> Any:
        """What a command has computed: a run, or what it has printed and written."""
        if command in MADE:
            return RunFolder.open(self.place / MADE[command]).digests()
        written = content(self.place).items()
        return answer.stdout, [
            (name, found)
            for name, found in sorted(written)
            if name.startswith("out") and name.endswith(COMPARED)
        ]


def damage(rng: random.Random, run: Path) -> tuple[str, str]:
    """Damages a file, or sometimes a folder: which, and how."""
    folders = sorted(path for path in run.rglob("*") if path.is_dir())
    if folders and rng.random() < 0.1:
        path = rng.choice(folders)
        return f"{path.relative_to(run)}/", damage_folder(rng, path)
    path = rng.choice(files_of(run, only_json=rng.random() < 0.5))
    return path.relative_to(run).as_posix(), damage_file(rng, path)


def is_sealed(run: Path, name: str) -> bool:
    """Whether a change can be noticed; what nothing vouches for is taken at its word."""
    return (run / DIGESTS).exists() and not name.endswith(("/", *UNSEALED))


def complaint(answer: Answer) -> str | None:
    """What is wrong with how a command has ended, and with what it has printed."""
    output, lines = answer.stdout + answer.stderr, answer.stderr.splitlines()
    if answer.crash:
        return answer.crash
    if answer.code not in (0, 1, 2):
        return f"exit code {answer.code}"
    if not all(line.isprintable() for line in output.split("\n")):
        return f"control characters in {output!r}"
    if "Warning:" in output:
        return f"warnings: {output!r}"
    if answer.code and not (lines and lines[-1].startswith("epcx: ")):
        return f"exit code {answer.code} without a sentence: {output!r}"
    if answer.code == 2 and output != answer.stderr.splitlines(keepends=True)[0]:
        return f"more than one sentence: {output!r}"
    return None


def harm(answer: Answer, before: Content, after: Content, run: str) -> str | None:
    """What a refusal has changed anywhere, and any other answer in the folder `run`."""
    changed = [name for name in before if after.get(name) != before[name]]
    added = [name for name in after if name not in before]
    if answer.code != 2:
        changed, added = [name for name in changed if Path(name).parts[0] == run], []
    return f"changed {changed} and added {added}" if changed or added else None


def content(folder: Path) -> Content:
    """All that is in a folder by name, but no locks."""
    return {
        path.relative_to(folder).as_posix(): fingerprint(path)
        for path in folder.rglob("*")
        if path.name != LOCK
    }


def fingerprint(path: Path) -> Any:
    """The content of a file; of anything else what it is."""
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        return path.readlink()
    if stat.S_ISREG(found.st_mode):
        return path.read_bytes() if found.st_size < MAX_READ else found.st_size
    return stat.S_IFMT(found.st_mode)


def shown(arguments: list[str]) -> str:
    """A command line for people, with what cannot be seen."""
    words = [ascii(word) if len(word) < 50 else f"{word[:20]!a}..." for word in arguments]
    return f"epcx {' '.join(words)}"
