"""Command lines that are wrong: made from the options that the commands have, and odd values."""

import os
import random
from collections.abc import Sequence
from pathlib import Path

from epcx import commands
from epcx.options import Option, options_of
from tests.faults.odd_values import EVERYTHING, NAMES, NUMBERS, OUTPUTS, PATHS, POPULATIONS

# Correct and quick, in a folder with a finished run, `run`. A command that is not here is given
# the run.
CORRECT = {
    "games": ["games"],
    "completion": ["completion bash"],
    "evaluate": ["evaluate run --episodes 2"],
    "crossplay": ["crossplay run random --episodes 2"],
    "report": ["report run --episodes 2"],
    "replay": ["replay run", "replay food-collection --out a.json", "replay grassland"],
    "publish": ["publish run --out copy --episodes 2"],
    "teams": ["teams", "teams --hub empty", "teams --write-index ."],
    "export": ["export run --out a.npz"],
    "train": [
        "train food-collection --preset smoke --method mean-field --population 1 --episodes 10 "
        "--out trained",
        "train grassland --preset quick",
        "train predator-prey --method scratch",
    ],
    "reproduce": ["reproduce food-collection --preset smoke", "reproduce grassland"],
}
LEFT_OUT = [("dry_run",), ("write_index",)]
SLOW = "report"  # draws for seconds
# These options of a training are tried with a real one; others with --dry-run, because a correct
# value can make it take days.
TRIED_IN_TRAINING = ("out", "checkpoint_minutes", "track", "engine", "devices", "address")
LIKELY: dict[object, list[str]] = {int: NUMBERS, float: NUMBERS, Path: PATHS}
LIKELY_OF = {
    **dict.fromkeys(("population", "stage"), POPULATIONS),
    **dict.fromkeys(("game", "learner", "method", "methods"), NAMES),
    "out": OUTPUTS,
}

# Each is correct in every part, or almost, and wrong as a whole.
WRONG_TOGETHER = """
train grassland --population 3 --dry-run
train food-collection --population 4 2 --dry-run
train food-collection --population 4 4 --dry-run
train food-collection --population --dry-run
train food-collection --population 1 --method epc --network mlp --dry-run
train food-collection --method att-maddpg --population 1 2 --dry-run
train food-collection --method att-maddpg --network mean-field --dry-run
train food-collection --sets 5 --matches 2 --dry-run
train food-collection --sets 5 --initial-matches 2 --dry-run
train food-collection --method vanilla-pc --sets 3 --dry-run
train food-collection --method epc --budget total --dry-run
train food-collection --batch-size 500 --buffer-size 100 --dry-run
train food-collection --learning-starts 100000000 --dry-run
train food-collection --num-envs 4294967296 --steps-per-update 4294967296 --dry-run
train food-collection --episodes 1 --dry-run
train food-collection --learner maddpg --learner epcx.learners:MADDPG --dry-run
train food-collection --init-from run@2 --population 1 --dry-run
train food-collection --init-from run --method maddpg --population 2 --dry-run
train grassland --init-from run --dry-run
train food-collection --init-from run@1 --init-from run/agents --dry-run
train food-collection --preset smoke --out run
train food-collection --preset smoke --out empty --engine local --address auto
train food-collection --preset smoke --out empty --engine ray --devices 1
train food-collection --preset smoke --out file.txt --devices 99
train food-collection --preset smoke --checkpoint-minutes -1 --out trained
replay run --players random
replay run --stage 2 --population 1 --match 0
replay run --stage 1 --match 5
replay food-collection --match 1
replay food-collection --players scripted --stage 1
replay food-collection --population 2 2
replay other.json
replay other.json --seed 1
replay run/config.json --out a.html
evaluate run --stage 1 --match 9 --episodes 2
evaluate run --stage 9 --population 2 --episodes 2
evaluate run --population 3-2 --episodes 2
evaluate run run --episodes 2
evaluate food-collection
crossplay random scripted
crossplay run run --episodes 2
crossplay run@1 run@2 run@1 --episodes 2
crossplay run --population 3-2 --episodes 2
report run run --episodes 2
report run ./run/ --episodes 2
report run --out run --episodes 2
report run --out run/agents --episodes 2
report run --out file.txt --episodes 2
publish run --out run
publish run --out run/copy
publish run --out .
publish run --out copy --sets 0
publish run --out copy --sets 9 --lines 0
publish run
publish copy --out run
publish run --out copy --episodes -1
evaluate hub:nobody
evaluate hub:
crossplay run hub:../run
replay hub:nobody --out a.json
teams --hub ftp://nowhere
teams --hub file.txt
teams --write-index empty
teams run
export run --out a.pkl
export run --out empty
export run --out a.npz --greedy
export run --out a.npz --stage 9
export run --out nowhere/a.npz
reproduce food-collection --methods --population 1 2 --dry-run
reproduce food-collection --methods epc epc chess --dry-run
reproduce food-collection --methods maddpg --population 2 1 --dry-run
reproduce food-collection --seeds 0 --dry-run
reproduce food-collection --out file.txt --dry-run
resume empty
resume run --engine local --gpus-per-task 1
lineage run --json --no-json run
digest run/agents
""".strip().splitlines()


def make_folder(place: Path) -> None:
    """What the odd paths and names stand for; `run` is put there by others."""
    (place / "empty").mkdir()
    (place / "file.txt").write_text("a text\n")
    (place / "other.json").write_text('{"format": "epcx-replay", "version": 1}')
    (place / "hollow.py").write_text("Game = 3\n")
    (place / "exits.py").write_text("import sys\nsys.exit('gone')\n")
    (place / "raises.py").write_text("raise RuntimeError('first\\nsecond \\x1b[2J')\n")
    for name in ("pipe", "pipe.json"):
        os.mkfifo(place / name)
    for name, target in (("zeros", "/dev/zero"), ("loop", "loop"), ("dangling", "nowhere")):
        (place / name).symlink_to(target)
        (place / f"{name}.json").symlink_to(name)


def command_line(rng: random.Random) -> list[str]:
    """A command line; commands with many options come more often, and slow ones do not."""
    options = {name: options_for(name) for name in commands.MODULES}
    weights = [1 if name == SLOW else 2 + len(known) for name, known in options.items()]
    name = rng.choices(list(options), weights)[0]
    return rng.choice(WAYS)(rng, name, options[name])


def options_for(name: str) -> list[Option]:
    """All but --dry-run, which `correct_line` decides about, and one that writes anywhere."""
    command = commands.find(name)
    types = command.types({}) if hasattr(command, "types") else {}
    return [option for option in options_of(command, types) if option.path not in LEFT_OUT]


# Ways to be wrong


def odd_values(rng: random.Random, name: str, options: Sequence[Option]) -> list[str]:
    """One or two options with values that they were not made for."""
    named = [option for option in options if not option.positional]
    chosen = rng.sample(named, min(len(named), rng.choice((1, 1, 2))))
    line = correct_line(rng, name, chosen)
    for option in chosen:
        line += spelled(rng, option, [odd_value(rng, option) for _ in range(values(rng, option))])
    return line


def odd_positional(rng: random.Random, name: str, options: Sequence[Option]) -> list[str]:
    """Another run, game or file than one that there is; or too many, or none."""
    head, *rest = correct_line(rng, name, options)
    words = [rng.choice([*PATHS, *PATHS, *EVERYTHING]) for _ in range(rng.choice((0, 1, 1, 1, 2)))]
    return [head, *words, *(rest if rng.random() < 0.1 else rest[1:])]


def mistyped(rng: random.Random, name: str, options: Sequence[Option]) -> list[str]:
    """An option that is almost spelled as it should be."""
    flag = rng.choice([flag for option in options for flag in option.flags] or ["--json"])
    at = rng.randrange(2, len(flag))
    shorter, longer = flag[:at] + flag[at + 1 :], flag[:at] + "e" + flag[at:]
    others = [flag.upper(), flag.replace("-", "_"), flag.replace("-", "\u2013"), f"{flag}\x1b[2J"]
    wrong = rng.choice([shorter, longer, flag[:at], flag[1:], f"{flag}=", f"{flag}==", *others])
    return [*correct_line(rng, name, options), wrong, *rng.choice(([], ["3"], ["a b"]))]


def repeated(rng: random.Random, name: str, options: Sequence[Option]) -> list[str]:
    """The same option several times: the last one counts."""
    option = rng.choice([option for option in options if not option.positional] or options)
    line = correct_line(rng, name, [option])
    return line + [
        word
        for _ in range(rng.choice((2, 3)))
        for word in spelled(rng, option, [odd_value(rng, option)])
    ]


def without_value(rng: random.Random, name: str, options: Sequence[Option]) -> list[str]:
    """Options one after the other, without what they need."""
    named = [option for option in options if not option.positional]
    flags = [rng.choice(option.flags) for option in rng.sample(named, min(len(named), 2))]
    return [*correct_line(rng, name, options), *flags]


def odd_command(rng: random.Random, name: str, options: Sequence[Option]) -> list[str]:
    """A command that does not exist, or words in the wrong order."""
    line = correct_line(rng, name, options)
    if rng.random() < 0.5:
        return rng.sample(line, len(line))
    return [rng.choice(EVERYTHING), *line[1:]]


def odd_help(rng: random.Random, name: str, options: Sequence[Option]) -> list[str]:
    """Help, with whatever else."""
    line = odd_values(rng, name, options)
    return [*line, rng.choice(("--help", "-h", "--help=x", "-hh", "--version"))]


def wrong_together(rng: random.Random, name: str, options: Sequence[Option]) -> list[str]:
    lines = [line for line in WRONG_TOGETHER if line.split()[0] == name]
    return rng.choice(lines or WRONG_TOGETHER).split()


WAYS = [
    *[odd_values] * 6,
    *[odd_positional] * 2,
    *(mistyped, repeated, without_value, odd_command, odd_help),
    *[wrong_together] * 2,
]

# Details


def correct_line(rng: random.Random, name: str, chosen: Sequence[Option]) -> list[str]:
    """A line that ends soon, also with correct values for the chosen options."""
    lines = CORRECT.get(name, [f"{name} run"])
    if not hasattr(commands.find(name), "dry_run"):
        return rng.choice(lines).split()
    if all(option.path[-1] in TRIED_IN_TRAINING for option in chosen) and name == "train":
        return lines[0].split()
    return [*rng.choice(lines).split(), "--dry-run"]


def odd_value(rng: random.Random, option: Option) -> str:
    """Mostly of the kind that the option takes."""
    likely = LIKELY_OF.get(option.path[-1], LIKELY.get(option.kind, EVERYTHING))
    return rng.choice(likely if likely is OUTPUTS or rng.random() < 0.7 else EVERYTHING)


def values(rng: random.Random, option: Option) -> int:
    return rng.choice((0, 1, 1, 2, 3)) if option.many else 1


def spelled(rng: random.Random, option: Option, texts: Sequence[str]) -> list[str]:
    """Flag and values as they may stand on a command line."""
    flag = rng.choice(option.flags)
    if option.kind is bool:
        return [flag if rng.random() < 0.7 else f"{flag}={texts[0]}"]
    if len(texts) == 1 and rng.random() < 0.5:
        return [f"{flag}={texts[0]}"]
    return [flag, *texts]
