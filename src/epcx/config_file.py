"""Settings in a file: the config.json of a run, or one that somebody wrote."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from epcx import learners, methods, presets
from epcx.config import TrainConfig
from epcx.errors import InputError
from epcx.runs.run import FORMAT, PROVENANCE, check_format, read_json
from epcx.typed_json import fields_from_json


def make_config(
    path: Path | None, preset: presets.Preset | None, chosen: Mapping[str, Any]
) -> TrainConfig:
    """The settings of a preset, then those of a file, if there is one, then `chosen` ones.

    `chosen` are some of game, method, learner, population and budget, on which defaults depend.
    """
    found = read(path) if path else {}
    theirs = found.pop("learner_config", {})
    known = {**found, **chosen}
    if "game" not in known:
        raise InputError(f"{path} has no game: give one" if path else "no game is given")
    config = presets.make_config(
        known["game"],
        known.get("method", "epc"),
        preset or presets.DEFAULT,
        known.get("population", ()),
        known.get("budget", "lineage"),
        learner=known.get("learner"),
    )
    theirs_of = found.get("learner", config.learner)
    if theirs and learners.find(theirs_of) is not learners.find(config.learner):
        raise InputError(
            f"{path} has settings of the learner {theirs_of}, which do not go with "
            f"{config.learner}: remove learner_config from it"
        )
    kind = type(config.learner_config)
    own = fields_from_json(theirs, kind, complaint(path), "learner_config")
    settings = {**known, "game": config.game}
    return replace(config, **settings, learner_config=replace(config.learner_config, **own))


def learner_of(path: Path | None, preset: presets.Preset | None, chosen: Mapping[str, Any]) -> str:
    """The learner that `make_config` will have; for a method that it will refuse, any."""
    known = {**(read(path) if path else {}), **chosen}
    method = known.get("method", "epc")
    default = presets.default_learner(
        method if method in methods.METHODS else "epc", preset or presets.DEFAULT
    )
    return known.get("learner") or default


def read(path: Path) -> dict[str, Any]:
    """The settings that a file has; those of its learner are not checked yet."""
    config = read_json(path.parent, path.name)
    if config is None:
        raise InputError(f"there is no config file {path}")
    if not isinstance(config, dict):
        raise InputError(f"{complaint(path)}: it is no object")
    check_format(path, {"format": FORMAT, **config})
    settings = {k: v for k, v in config.items() if k not in ("format", PROVENANCE)}
    found = fields_from_json(settings, TrainConfig, complaint(path))
    if not isinstance(found.get("learner_config", {}), dict):
        raise InputError(f"{complaint(path)}: learner_config is no object")
    return found


def complaint(path: Path | None) -> str:
    return f"{path} is no config file"
