"""A copy of a run for others: small, and with all that playing, comparing and reporting needs."""

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import groupby, product
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from epcx import cards, games
from epcx.cards import CARD, README, Card
from epcx.config import TrainConfig
from epcx.errors import InputError, RunError, choice, reason, whole_number
from epcx.evaluation.study import MAIN_METHOD, finished
from epcx.evolution.lineage import Lineage
from epcx.hub import FORMAT, INDEX, HubFile, HubTeam, Index, is_within
from epcx.presets import name_settings
from epcx.runs.files import file_digest, write_bytes
from epcx.runs.quantisation import quantised
from epcx.runs.run import CONFIG, LINEAGE, LOCK, RunFolder, check_unused
from epcx.runs.weights import load_weights, names_of
from epcx.teams import stage_of, weights_metadata

Precision = Literal["float32", "float16", "int8", "int4"]  # of published weights
MAX_DEPTH = 3  # folders in one another, down to a run of a hub


def publish(
    source: RunFolder,
    folder: Path,
    sets: int | None = None,
    lines: int = 25,
    card: Callable[[RunFolder], Card] | None = None,
    precision: Precision = "float32",
    population: Sequence[str] = (),
) -> RunFolder:
    """Without critics, snapshots and all but the best sets; with fewer lines of the log.

    Weights may be stored with less precision, and those of some stages only. `card` measures the
    copy. It is made in a folder beside and renamed, so that it is there completely or not at all.
    """
    config = check(source, folder, sets, lines, precision, population)
    theirs = Path(os.path.realpath(folder))
    temporary = theirs.parent / f".{theirs.name}-{secrets.token_hex(6)}"
    try:
        copy = RunFolder.create(temporary, source.settings, source.provenance)
        fill(copy, source, config, sets, lines, precision, population or source.stages())
        if card is not None:
            found = card(copy)
            write_bytes(temporary / CARD, cards.to_json(found))
            write_bytes(temporary / README, cards.to_markdown(copy, found).encode())
        copy.unlock()
        (temporary / LOCK).unlink()
        (folder / LOCK).unlink(missing_ok=True)
        os.rename(temporary, folder)
    except OSError as error:
        raise RunError(f"{folder} cannot be written: {reason(error)}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return RunFolder.open(folder)


def check(
    source: RunFolder,
    folder: Path,
    sets: int | None,
    lines: int,
    precision: Precision,
    population: Sequence[str],
) -> TrainConfig:
    """Refuses what cannot be published there."""
    choice("precision", precision, Precision)
    if sets is not None:
        whole_number("sets", sets, 1)
    whole_number("lines", lines, 1)
    config = finished(source)
    for stage in population:
        stage_of(source, stage, stage)
    if population and (last := source.stages()[-1]) not in population:
        raise InputError(f"population leaves out {last}, at which the copy would play: add it")
    ours, theirs = (Path(os.path.realpath(path)) for path in (source.path, folder))
    if ours.is_relative_to(theirs) or theirs.is_relative_to(ours):
        raise InputError(
            f"{folder} and the run {source.path} lie in one another: choose another --out"
        )
    if folder.is_symlink() and not folder.exists():
        raise InputError(f"{folder} is a link that leads nowhere: choose another --out")
    check_unused(folder)
    return config


def fill(
    copy: RunFolder,
    source: RunFolder,
    config: TrainConfig,
    sets: int | None,
    lines: int,
    precision: Precision,
    population: Sequence[str],
) -> None:
    for stage in population:
        learner = config.make_learner(config.at(stage))
        like = jax.eval_shape(learner.init, jax.random.key(0))
        for rank in range(min(source.ranks(stage), sets or source.ranks(stage))):
            for role in learner.game.members:
                path, kind = source.weights(stage, rank, role), weights_metadata(learner, role)
                policies = load_weights(path, like, kind, learner.policies)
                names = learner.policies(names_of(like))
                pairs = zip(jax.tree.leaves(names), jax.tree.leaves(policies), strict=True)
                copy.save_agents(stage, rank, role, stored(path, dict(pairs), precision), kind)
    copy.write(LINEAGE, Lineage.from_json(source.lineage()).to_json())
    copy.append_metrics(list(thinned(source.metrics(), lines)))
    copy.write_result(source.result)


def stored(
    path: Path, weights: dict[str, np.ndarray], precision: Precision
) -> dict[str, np.ndarray]:
    """Weights as they are published; those that a smaller type cannot hold are refused."""
    with np.errstate(over="ignore", invalid="ignore"):
        if precision in ("int8", "int4"):
            small = quantised(weights, 8 if precision == "int8" else 4)
        elif precision == "float16":
            halves = {n: x.astype(np.float16) for n, x in weights.items() if x.dtype == np.float32}
            small = weights | halves
        else:
            return weights
    if not all(np.isfinite(x).all() for x in small.values()):
        raise InputError(
            f"{path} holds weights too large for {precision}: publish them with --precision float32"
        )
    return small


def make_index(folder: Path) -> Index:
    """The finished runs in a folder, by their places in it, with all their files."""
    teams = []
    depths = range(1, MAX_DEPTH + 1)
    for config in sorted(path for n in depths for path in folder.glob("*/" * n + CONFIG)):
        if any(part.startswith(".") for part in config.relative_to(folder).parts):
            continue  # a copy that is being made
        run = RunFolder.open(config.parent)
        if run.result.get("ended") == "finished":
            try:
                teams.append(index_entry(run, run.path.relative_to(folder).as_posix()))
            except OSError as error:
                raise InputError(f"{run.path} cannot be read: {reason(error)}") from None
    chosen = bundled(teams)
    return Index(FORMAT, tuple(replace(team, bundled=team.name in chosen) for team in teams))


def index_entry(run: RunFolder, name: str) -> HubTeam:
    config, card = TrainConfig.of(run), Card.of(run)
    for stage in run.stages():
        for rank, role in product(range(run.ranks(stage)), games.find(config.game).roles):
            run.weights(stage, rank, role.name)  # damaged ones get no other checksum
    files = [
        path
        for path in sorted(run.path.rglob("*"))
        if path.is_file() and path.name != LOCK and not path.name.startswith(".")
    ]
    for place in (name, *(path.relative_to(run.path).as_posix() for path in files)):
        if not is_within(place):
            raise InputError(f"{place!r} in {run.path} cannot be in a hub: give it a plain name")
    return HubTeam(
        name=name,
        game=config.game,
        method=config.method,
        learner=config.learner,
        trained_with=name_settings(config),
        populations=tuple(run.stages()),
        seed=config.seed,
        licence=card.licence if card else None,
        episodes=card.episodes if card else None,
        scores=card.scores if card else (),
        bundled=False,
        settings=run.settings,
        files=tuple(
            HubFile(path.relative_to(run.path).as_posix(), path.stat().st_size, file_digest(path))
            for path in files
        ),
    )


def bundled(teams: Sequence[HubTeam]) -> set[str]:
    """The names of those that come with the package: one of EPC's for every game.

    Those with better settings than the paper's are preferred, then lower seeds.
    """
    chosen: dict[str, HubTeam] = {}
    for team in sorted(teams, key=lambda team: (team.trained_with != "preset best", team.seed)):
        if team.method == MAIN_METHOD:
            chosen.setdefault(team.game, team)
    return {team.name for team in chosen.values()}


def write_index(folder: Path) -> Index:
    index = make_index(folder)
    if not index.teams:
        raise InputError(f"{folder} has no folders of finished runs: publish some into it first")
    try:
        write_bytes(folder / INDEX, (json.dumps(asdict(index), indent=1) + "\n").encode())
    except OSError as error:
        raise InputError(f"{folder / INDEX} cannot be written: {reason(error)}") from None
    return index


def thinned(rows: list[dict[str, Any]], lines: int) -> Iterator[dict[str, Any]]:
    """At most `lines` lines for each match of each stage; each is a mean of consecutive ones."""
    of_a_match = sorted(rows, key=lambda row: (row.get("stage", 0), row["match"]))
    for _, group in groupby(of_a_match, key=lambda row: (row.get("stage", 0), row["match"])):
        mine = list(group)
        size = -(-len(mine) // lines)
        for end in range(len(mine), 0, -size)[::-1]:
            some = mine[max(0, end - size) : end]
            yield {name: mean([row.get(name) for row in some]) for name in some[-1]}


def mean(values: list[Any]) -> Any:
    """Of numbers that change from line to line; of others, such as counters, the last."""
    if isinstance(values[-1], float) and all(isinstance(value, float) for value in values):
        return sum(values) / len(values)
    return values[-1]
