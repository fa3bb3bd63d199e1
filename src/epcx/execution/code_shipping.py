"""Sends objects to other machines together with the source code of their classes.

Games and learners may live in modules that only this machine has, such as files in the current
folder. Pickling classes by value would not do: equinox modules and registered dataclasses have to
be defined by running their module. So the sources travel, and are imported where they arrive.
"""

import importlib.util
import sys
import sysconfig
from collections.abc import Sequence
from importlib.abc import ExecutionLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from epcx.execution.ray_cluster import import_ray
from epcx.learners.learner import Learner

STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))
INSTALLED = {"site-packages", "dist-packages"}


class ModuleSource(NamedTuple):
    """A Python file, and the folders of the package that it is, if it is one."""

    path: str
    content: bytes
    folders: list[str] | None


class Shipped:
    """Pickles a thing, such as a task, with the sources of its learner; unpickles as the thing."""

    def __init__(self, learner: Learner, thing: Any):
        self.learner, self.thing = learner, thing

    def __reduce__(self) -> tuple[Any, ...]:
        dumps = import_ray().cloudpickle.dumps  # also pickles what __main__ defines
        return unpack, (local_sources(self.learner), dumps(self.thing))


def unpack(sources: dict[str, ModuleSource], pickled: bytes) -> Any:
    FINDER.sources |= sources
    if FINDER not in sys.meta_path:
        sys.meta_path.insert(0, FINDER)
    return import_ray().cloudpickle.loads(pickled)


class SourceFinder(MetaPathFinder, ExecutionLoader):
    """Imports modules from sources in memory."""

    def __init__(self) -> None:
        self.sources: dict[str, ModuleSource] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.sources:
            return None
        path, _, folders = self.sources[name]
        return importlib.util.spec_from_file_location(
            name, path, loader=self, submodule_search_locations=folders
        )

    def get_filename(self, name: str) -> str:
        return self.sources[name].path

    def get_source(self, name: str) -> str:
        return importlib.util.decode_source(self.sources[name].content)


FINDER = SourceFinder()


def local_sources(learner: Learner) -> dict[str, ModuleSource]:
    """All modules loaded here that are not installed, if the learner or its game is in one.

    Packages with compiled parts are left out: they have to be installed where they are used.
    """
    files = local_files()
    classes = [*type(learner).__mro__, *type(learner.game).__mro__]
    if not {cls.__module__ for cls in classes} & {"__main__", *files}:
        return {}
    python = ("", ".py")  # no suffix: a package without __init__.py
    compiled = {top_level(name) for name, path in files.items() if path.suffix not in python}
    return {
        name: ModuleSource(
            str(path),
            path.read_bytes() if path.is_file() else b"",
            list(getattr(sys.modules[name], "__path__", ())) or None,
        )
        for name, path in files.items()
        if top_level(name) not in compiled
    }


def local_files() -> dict[str, Path]:
    """The file or folder of every loaded module that is not installed, nor Python's or epcx's."""
    found = {}
    for name, module in list(sys.modules.items()):
        known = getattr(module, "__dict__", {})  # asks no module that loads others lazily
        place = known.get("__file__") or next(iter(known.get("__path__") or ()), None)
        if isinstance(place, str) and top_level(name) not in ("epcx", "__main__", "__mp_main__"):
            path = Path(place)
            if not INSTALLED & set(path.parts) and not path.is_relative_to(STANDARD_LIBRARY):
                found[name] = path
    return found


def top_level(name: str) -> str:
    return name.partition(".")[0]
