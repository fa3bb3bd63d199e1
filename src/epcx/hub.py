"""A hub of trained teams: a folder or a web address with an index of published runs.

`hub:NAME` stands for a run of the hub wherever a run is expected. The hub is what the variable
EPCX_HUB names; by default results/ of a checkout, or the teams that come with the package.
"""

import contextlib
import hashlib
import http.client
import json
import os
import re
import secrets
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from epcx.cache import private_folder
from epcx.errors import InputError, nearest, printable, reason
from epcx.runs.files import json_digest, read_text, write_bytes
from epcx.typed_json import from_json

PREFIX = "hub:"
VARIABLE = "EPCX_HUB"
INDEX = "index.json"
FORMAT: Literal["epcx hub 1"] = "epcx hub 1"
TIMEOUT = 30.0  # seconds without an answer
CHUNK = 2**16
MAX_INDEX = 2**26  # bytes
# A part of a path: not hidden, no way up, and nothing that other systems take for a separator.
PART = re.compile(r"[^./\\:\x00-\x1f\x7f][^/\\:\x00-\x1f\x7f]*")


@dataclass(frozen=True)
class HubFile:
    """A file of a team; its path is relative to the team's folder."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Score:
    """Task reward of a role per episode, as evaluations show it, with its standard error.

    `player` and `against` are `team` (these agents) or the name of fixed players; `against` is
    null without opponents.
    """

    population: str
    role: str
    player: str
    against: str | None
    mean: float
    error: float


@dataclass(frozen=True)
class HubTeam:
    """A published run in the index; its name is that of its folder."""

    name: str
    game: str
    method: str
    learner: str
    trained_with: str  # the preset, or what differs from the defaults
    populations: tuple[str, ...]
    seed: int
    licence: str | None
    episodes: int | None  # behind every score
    scores: tuple[Score, ...]
    bundled: bool  # comes with the package
    settings: Any
    files: tuple[HubFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class Index:
    """What a hub has."""

    format: Literal["epcx hub 1"]
    teams: tuple[HubTeam, ...]

    @classmethod
    def parse(cls, text: str, place: object) -> "Index":
        """Raises `InputError` if it is damaged, or leads out of the folders of its teams."""
        complaint = f"the index of the hub {place} is damaged"
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            raise InputError(f"{complaint}: it is not JSON") from None
        index = from_json(found, cls, complaint)
        for team in index.teams:
            for path in (team.name, *(file.path for file in team.files)):
                if not is_within(path):
                    raise InputError(f"{complaint}: {path!r} is not a path within a folder")
        return index

    def find(self, name: str, place: object) -> HubTeam:
        for team in self.teams:
            if team.name == name:
                return team
        others = nearest(name, (team.name for team in self.teams))
        others = others or ": epcx teams lists those it has"
        raise InputError(f"the hub {place} has no team {name!r}{others}")


@dataclass(frozen=True)
class FolderHub:
    """Published runs in a folder, which are used where they are."""

    place: Path

    def index(self) -> Index:
        try:
            return Index.parse(read_text(self.place / INDEX), self.place)
        except OSError as error:
            raise InputError(
                f"{self.place} is not a hub: {INDEX} cannot be read ({reason(error)}); "
                f"epcx teams --write-index {self.place} makes it"
            ) from None
        except UnicodeDecodeError:
            raise InputError(f"the index of the hub {self.place} is damaged: not text") from None

    def folder(self, name: str) -> Path:
        return self.place / self.index().find(name, self.place).name


@dataclass(frozen=True)
class WebHub:
    """Published runs at a web address, which are downloaded once and kept in the user's cache."""

    place: str

    def index(self) -> Index:
        """As it is now; it is kept, so that teams that were downloaded are found offline."""
        content = b"".join(download(f"{self.place}/{INDEX}", MAX_INDEX))
        index = Index.parse(content.decode(errors="replace"), self.place)
        with writing(self.cache):
            write_bytes(self.cache / INDEX, content)
        return index

    def folder(self, name: str) -> Path:
        kept = self._kept_index()
        if kept is not None and any(team.name == name for team in kept.teams):
            folder = self._folder_of(kept.find(name, self.place))
            if folder.is_dir():
                return folder
        team = self.index().find(name, self.place)
        folder = self._folder_of(team)
        if not folder.is_dir():
            self._download(team, folder)
        return folder

    @property
    def cache(self) -> Path:
        """The folder for this address."""
        try:
            folder = private_folder("hub") / hashlib.sha256(self.place.encode()).hexdigest()[:16]
            folder.mkdir(exist_ok=True)
        except (OSError, RuntimeError) as error:
            raise InputError(f"there is no folder to download to: {error}") from None
        return folder

    def _kept_index(self) -> Index | None:
        try:
            return Index.parse(read_text(self.cache / INDEX, errors="replace"), self.place)
        except (OSError, InputError):
            return None

    def _folder_of(self, team: HubTeam) -> Path:
        """Another one for each version of a team."""
        version = json_digest([asdict(file) for file in team.files])[:16]
        return self.cache / version / team.name

    def _download(self, team: HubTeam, folder: Path) -> None:
        """Makes the folder in one step, when all files are there and have their checksums."""
        temporary = self.cache / f".{secrets.token_hex(6)}"
        try:
            with writing(folder), progress(team) as advance:
                for file in team.files:
                    path = temporary / file.path
                    path.parent.mkdir(parents=True, exist_ok=True)
                    self._download_file(f"{team.name}/{file.path}", file, path, advance)
                folder.parent.mkdir(parents=True, exist_ok=True)
                try:
                    os.rename(temporary, folder)
                except OSError:
                    if not folder.is_dir():  # another process was faster
                        raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _download_file(
        self, name: str, file: HubFile, path: Path, advance: Callable[[int], None]
    ) -> None:
        url = f"{self.place}/{urllib.parse.quote(name)}"
        checksum = hashlib.sha256()
        with open(path, "wb") as target:
            for chunk in download(url, file.size):
                target.write(chunk)
                checksum.update(chunk)
                advance(len(chunk))
        if checksum.hexdigest() != file.sha256:
            raise InputError(
                f"{url} is not the file that the index names: its checksum is another one"
            )


def open_hub(place: str | None = None) -> FolderHub | WebHub:
    """The hub that is named, here or by EPCX_HUB, or the default one."""
    named = place or os.environ.get(VARIABLE) or default_place()
    text = str(named)
    if re.match("https?://", text, re.IGNORECASE):
        return WebHub(text.rstrip("/"))
    if "://" in text:
        raise InputError(f"the hub {text} is neither a folder nor an address of http or https")
    return FolderHub(Path(text))


def default_place() -> Path:
    """results/ of the checkout that epcx runs from, or the teams in the package."""
    root = Path(__file__).parents[2]
    results = root / "results"
    if (root / "pyproject.toml").is_file() and (results / INDEX).is_file():
        return results
    return Path(__file__).parent / "published"


def is_within(path: str) -> bool:
    """Whether a path stays in the folder that it is relative to, on any system."""
    return all(PART.fullmatch(part) for part in path.split("/"))


def is_hub_name(source: object) -> bool:
    return str(source).startswith(PREFIX)


def resolve(source: str | Path) -> Path:
    """The folder of a run: hub:NAME is looked up, and downloaded if need be."""
    if not is_hub_name(source):
        return Path(source)
    return open_hub().folder(str(source).removeprefix(PREFIX))


# Details


def download(url: str, limit: int) -> Iterator[bytes]:
    """The content, in chunks; at most `limit` bytes and one more chunk of it."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
            done = 0
            while done <= limit and (chunk := answer.read(CHUNK)):
                done += len(chunk)
                yield chunk
    except urllib.error.HTTPError as error:
        raise InputError(f"{url} cannot be read: HTTP {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        why = reason(error.reason) if isinstance(error.reason, OSError) else error.reason
        raise InputError(f"{url} cannot be reached: {why}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        raise InputError(f"{url} cannot be read: {why or type(error).__name__}") from None


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{path} cannot be written: {reason(error)}") from None


@contextlib.contextmanager
def progress(team: HubTeam) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal."""
    console = Console(stderr=True, highlight=False)
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(printable(team.name), total=team.size)
        yield lambda size: bar.advance(task, size)
