"""Replays: one recorded episode, written as JSON, page, animation or picture."""

import html
import json
import math
import re
import reprlib
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from epcx.errors import InputError, reason
from epcx.reports.packing import pack_flags, pack_numbers
from epcx.runs.files import read_text, write_bytes

FORMAT = "epcx-replay"
VERSION = 1
DECIMALS = 4
MAX_VALUE = 1e6  # times the size of the world: larger numbers are refused

ARRAYS: dict[str, tuple[type, str]] = {  # type and axes
    "position": (float, "frames agents 2"),
    "alive": (bool, "frames agents"),
    "food": (float, "frames food 2"),
    "obstacles": (float, "obstacles 2"),
    "reward": (float, "frames agents"),
    "ate": (int, "frames agents"),
    "killed": (int, "frames agents"),
    "died": (bool, "frames agents"),
    "touched": (int, "frames agents"),
    "occupied": (bool, "frames food"),
}
TYPE_NAMES: dict[Any, str] = {
    str: "text",
    float: "a number",
    int: "a whole number",
    bool: "true or false",
}


@dataclass(frozen=True)
class ReplayRole:
    """A role as it is drawn: `colour` is #rrggbb, `size` the radius in world units."""

    name: str
    colour: str
    size: float
    count: int

    def __post_init__(self) -> None:
        _check_text("role name", self.name)
        if not re.fullmatch(r"#[0-9a-fA-F]{6}", self.colour):
            raise InputError(
                f"role colour must be written #rrggbb, not {reprlib.repr(self.colour)}"
            )
        _check_size("role size", self.size, positive=True)
        if self.count < 1:
            raise InputError(f"role count must be above 0, not {self.count}")


@dataclass(frozen=True, eq=False)
class Replay:
    """One episode of T steps, hence T+1 frames; agents are ordered by role.

    `ARRAYS` has the axes of the arrays. Rewards and events of a step are stored with the frame
    after it, and are zero in frame 0.
    """

    game: str
    population: str
    title: str
    roles: tuple[ReplayRole, ...]
    world_size: float  # half the side: the world is the square [-world_size, world_size]^2
    walls: bool  # False: agents may leave the square
    food_name: str
    food_size: float
    obstacle_size: float
    position: np.ndarray
    alive: np.ndarray
    food: np.ndarray
    obstacles: np.ndarray
    reward: np.ndarray  # task reward
    ate: np.ndarray  # pellets touched
    killed: np.ndarray
    died: np.ndarray
    touched: np.ndarray  # other agents touched
    occupied: np.ndarray  # touched by an agent; eaten if the pellet moved

    def __post_init__(self) -> None:
        for name in ("game", "population", "title", "food_name"):
            _check_text(name, getattr(self, name))
        if not self.roles:
            raise InputError("roles must name at least one role")
        counts = "-".join(str(role.count) for role in self.roles)
        if self.population != counts:
            raise InputError(f"population {self.population} differs from the roles' {counts}")
        _check_size("world_size", self.world_size, positive=True)
        if not 1e-3 <= self.world_size <= 1e6:
            raise InputError(f"world_size must be from 0.001 to 1000000, not {self.world_size}")
        sizes = {"food_size": self.food_size, "obstacle_size": self.obstacle_size}
        for name, size in sizes.items():
            _check_size(name, size)
        sizes |= {f"size of role {role.name}": role.size for role in self.roles}
        for name, size in sizes.items():
            if size > self.world_size:
                raise InputError(f"{name} {size} is more than world_size {self.world_size}")

        arrays = {
            name: _to_array(name, getattr(self, name), kind) for name, (kind, _) in ARRAYS.items()
        }
        first = {name: arrays[name].shape for name in ("position", "food", "obstacles")}
        lengths = {
            "frames": first["position"][0] if first["position"] else 0,
            "agents": sum(role.count for role in self.roles),
            "food": first["food"][1] if len(first["food"]) > 1 else 0,
            "obstacles": first["obstacles"][0] if first["obstacles"] else 0,
            "2": 2,
        }
        if lengths["frames"] == 0:
            raise InputError("position must hold at least one frame")
        for name, (_, axes) in ARRAYS.items():
            shape = tuple(lengths[axis] for axis in axes.split())
            array = arrays[name]
            if array.size == 0 and 0 in shape:  # JSON cannot tell [0] from [0, 2]
                array = array.reshape(shape)
            if array.size and np.abs(array).max() > MAX_VALUE * max(self.world_size, 1):
                raise InputError(f"{name} holds a number that is far too large")
            if array.shape != shape:
                raise InputError(f"{name} must have shape {list(shape)}, not {list(array.shape)}")
            object.__setattr__(self, name, array)

    @property
    def steps(self) -> int:
        """T, the number of steps played."""
        return len(self.position) - 1

    @property
    def role_of(self) -> Int[np.ndarray, "agents"]:
        """The index of every agent's role in `roles`."""
        return np.repeat(np.arange(len(self.roles)), [role.count for role in self.roles])

    def _repr_html_(self) -> str:
        """The page in a frame of its own, which notebooks show."""
        return (
            f'<iframe srcdoc="{html.escape(to_html(self))}" title="{html.escape(self.title)}" '
            'sandbox="allow-scripts" width="100%" height="640" style="border: 0"></iframe>'
        )


def _check_text(name: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputError(f"{name} contains characters that are not valid Unicode") from None
    if any(unicodedata.category(character) == "Cc" for character in value):
        raise InputError(f"{name} contains control characters")


def _check_size(name: str, value: float, *, positive: bool = False) -> None:
    if not math.isfinite(value) or value < 0 or (positive and value == 0):
        allowed = "above 0" if positive else "of 0 or more"
        raise InputError(f"{name} must be a finite number {allowed}, not {value}")


def _to_array(name: str, value: Any, kind: type) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError:
        raise InputError(f"{name} has rows of different lengths") from None
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name} must hold numbers only")
    if not np.isfinite(array).all():
        raise InputError(f"{name} contains a number that is not finite")
    with np.errstate(invalid="ignore"):  # numbers that an integer cannot hold are refused below
        converted: np.ndarray = array.astype(kind)
    if kind is not float and ((converted != array).any() or (array < 0).any()):
        allowed = "0 or 1" if kind is bool else "whole numbers of 0 or more"
        raise InputError(f"{name} may hold only {allowed}")
    return converted


def to_payload(replay: Replay) -> dict[str, Any]:
    """The replay as JSON values, which `save` writes."""
    payload: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    for field in fields(replay):
        value = getattr(replay, field.name)
        if field.name in ARRAYS:
            kind, _ = ARRAYS[field.name]
            # + 0.0 turns -0.0 into 0.0
            value = value.round(DECIMALS) + 0.0 if kind is float else value.astype(int)
            value = value.tolist()
        elif field.name == "roles":
            value = [asdict(role) for role in value]
        payload[field.name] = value
    return payload


def to_page_payload(replay: Replay) -> dict[str, Any]:
    """What the page's player reads, some 6 bytes per agent and frame.

    Positions and flags are packed, and events of agents are flags; the sums of their numbers by
    role, accumulated over the frames, are in `totals`.
    """
    starts = np.cumsum([0, *(role.count for role in replay.roles[:-1])])
    totals = {
        name: np.add.reduceat(getattr(replay, name), starts, axis=1).cumsum(0)
        for name in ("reward", "ate", "killed", "touched")
    }
    payload: dict[str, Any] = {
        name: getattr(replay, name)
        for name in ("game", "population", "title", "world_size", "walls", "food_name", "food_size")
    }
    return {
        **payload,
        "frames": replay.steps + 1,
        "roles": [asdict(role) for role in replay.roles],
        "obstacle_size": replay.obstacle_size,
        "obstacles": replay.obstacles.tolist(),
        "totals": {
            name: (values.round(DECIMALS) + 0.0).tolist() for name, values in totals.items()
        },
        **{name: pack_numbers(getattr(replay, name)) for name in ("position", "food")},
        **{
            name: pack_flags(getattr(replay, name))
            for name in ("alive", "died", "killed", "touched", "occupied")
        },
        "pellets": replay.food.shape[1],
    }


def from_payload(payload: object) -> Replay:
    """The inverse of `to_payload`; raises `InputError` if the payload is not a valid replay."""
    if not isinstance(payload, dict) or payload.get("format") != FORMAT:
        raise InputError(f'its "format" is not "{FORMAT}"')
    version = payload.get("version")
    if type(version) is not int or version < 1:
        raise InputError(f"version must be a whole number above 0, not {reprlib.repr(version)}")
    if version > VERSION:
        raise InputError(f"it has version {version}, newer than the {VERSION} that this epcx reads")

    roles = _get(payload, "roles")
    if not isinstance(roles, list):
        raise InputError("roles must be a list")
    parsed = tuple(ReplayRole(**_read_fields(ReplayRole, role, "role ")) for role in roles)
    return Replay(roles=parsed, **_read_fields(Replay, payload))


def _read_fields(kind: type[Any], mapping: object, where: str = "") -> dict[str, Any]:
    """The fields of a dataclass except `roles`, each checked against its declared type."""
    values = {}
    for field in fields(kind):
        name = field.name
        if name == "roles":
            continue
        value = _get(mapping, name, where)
        if name in ARRAYS:
            value = _to_array(name, value, ARRAYS[name][0])
        elif field.type is float and type(value) is int:
            value = float(value) if abs(value) < 1e300 else math.inf
        elif type(value) is not field.type:
            raise InputError(
                f"{where}{name} must be {TYPE_NAMES[field.type]}, not {reprlib.repr(value)}"
            )
        values[name] = value
    return values


def _get(mapping: object, name: str, where: str = "") -> Any:
    if not isinstance(mapping, dict) or name not in mapping:
        raise InputError(f'it has no {where}field "{name}"')
    return mapping[name]


def load(path: str | Path) -> Replay:
    """Reads a replay that `save` wrote; raises `InputError` if the file is damaged."""
    try:
        payload = json.loads(read_text(Path(path)))
    except OSError as error:
        raise InputError(f"cannot read the replay {path}: {reason(error)}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path} is not a replay: it is not valid JSON") from None
    try:
        return from_payload(payload)
    except InputError as error:
        raise InputError(f"{path} is not a replay that epcx can read: {error}") from None


def save(replay: Replay, path: str | Path) -> None:
    """Writes the replay as one JSON file, positions and rewards rounded to 4 decimals."""
    _write_bytes(Path(path), _dump(replay).encode())


def write(replay: Replay, path: str | Path) -> None:
    """Writes a page, an animation, a picture or the data, depending on the file's extension."""
    path = Path(path)
    check_destination(path)
    _write_bytes(path, WRITERS[path.suffix.lower()](replay))


def check_destination(path: Path) -> None:
    """Raises `InputError` if `write` could not write there, before an episode is played."""
    if path.suffix.lower() not in WRITERS:
        *most, last = WRITERS
        raise InputError(
            f"cannot write the replay '{path}': its name must end with {', '.join(most)} or {last}"
        )
    try:
        if not path.parent.is_dir():
            raise InputError(f"cannot write the replay {path}: there is no folder {path.parent}")
        if path.is_dir():
            raise InputError(f"cannot write the replay {path}: it is a folder")
        if path.exists() and not path.is_file():
            raise InputError(f"cannot write the replay {path}: it is not a regular file")
    except OSError as error:
        raise InputError(f"cannot write the replay {path}: {reason(error)}") from None
    if path.suffix.lower() == ".mp4":
        from epcx.reports import video

        video.find_ffmpeg()


def player_assets() -> tuple[str, str]:
    """The player's style sheet and its script, which defines `createReplay(container, data)`."""
    return read_asset("replay.css"), read_asset("replay.js")


def to_html(replay: Replay) -> str:
    """One self-contained page that plays the replay."""
    css, js = player_assets()
    parts = {"title": html.escape(replay.title), "css": css, "js": js}
    parts["data"] = embed_json(json.dumps(to_page_payload(replay), separators=(",", ":")))
    return fill_template("replay.html", parts)


def fill_template(name: str, parts: Mapping[str, str]) -> str:
    """A template with its placeholders replaced, in one pass: parts may contain {{...}}."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], read_asset(name))


def embed_json(text: str) -> str:
    """JSON with its special characters escaped, to be put into a <script> element."""
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _dump(replay: Replay) -> str:
    return json.dumps(to_payload(replay), separators=(",", ":"), allow_nan=False)


def read_asset(name: str) -> str:
    return resources.files("epcx.reports").joinpath(name).read_text("utf-8")


def _to_gif(replay: Replay) -> bytes:
    from epcx.reports import drawing  # Pillow takes time to import

    return drawing.to_gif(replay)


def _to_mp4(replay: Replay) -> bytes:
    from epcx.reports import video

    return video.to_mp4(replay)


def _to_png(replay: Replay) -> bytes:
    from epcx.reports import drawing

    return drawing.to_png(replay)


WRITERS: dict[str, Callable[[Replay], bytes]] = {
    ".html": lambda replay: to_html(replay).encode(),
    ".gif": _to_gif,
    ".mp4": _to_mp4,
    ".png": _to_png,
    ".json": lambda replay: _dump(replay).encode(),
}


def _write_bytes(path: Path, content: bytes) -> None:
    try:
        write_bytes(path, content)
    except OSError as error:
        raise InputError(f"cannot write the replay {path}: {reason(error)}") from None
