"""Games and learners by name: built in, registered, installed as plug-ins, or module:Name."""

import importlib
import os
import sys
from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from epcx.errors import InputError, nearest

T = TypeVar("T")


def reference(cls: type) -> str:
    """What other processes can find a class by: `package.module:Class`."""
    return f"{cls.__module__}:{cls.__qualname__}"


@cache
def installed(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """What the packages in `path` announce. Reading them all takes milliseconds, and names are
    looked up thousands of times in a comparison."""
    return tuple(entry_points(group=group))


class Registry(Generic[T]):
    """Classes of one kind, such as games, each under the `name` that it has as an attribute.

    Installed packages announce theirs as entry points of `group`. `check` raises an `InputError`
    for a class that does not meet the contract.
    """

    def __init__(self, kind: str, base: type[T], group: str, check: Callable[[type[T]], None]):
        self.kind, self.base, self.group, self.check = kind, base, group, check
        self.known: dict[str, type[T]] = {}

    def register(self, cls: type[T]) -> type[T]:
        """Makes a class known by its name; usable as a decorator."""
        self._checked(cls, reference(cls))
        name: str = cls.name  # type: ignore[attr-defined]
        taken = self.known.get(name)
        if taken is not None and reference(taken) != reference(cls):
            raise InputError(
                f"two {self.kind}s are called {name!r}: {reference(taken)} and {reference(cls)}; "
                "rename one of them"
            )
        self.known[name] = cls
        return cls

    def names(self) -> list[str]:
        """Built-in and registered names, then those of installed packages."""
        return list(dict.fromkeys([*self.known, *(point.name for point in self._entry_points())]))

    def find(self, name: str | type[T]) -> type[T]:
        """The class of a name, of a reference module:Name, or the class itself."""
        if isinstance(name, type):
            return self._checked(name, reference(name))
        if not isinstance(name, str):
            raise InputError(f"{name!r} is not a {self.kind}: give its name, module:Name or class")
        if ":" in name:
            return self._checked(self._load(name), name)
        if name not in self.names():
            installed.cache_clear()  # a package may have been installed since, as in a notebook
        points = [point for point in self._entry_points() if point.name == name]
        known = [reference(self.known[name])] if name in self.known else []
        sources = list(dict.fromkeys([*known, *(point.value for point in points)]))
        if len(sources) > 1:
            raise InputError(
                f"{self.kind} {name!r} is ambiguous: {' and '.join(sources)} have that name; "
                "name one of these instead"
            )
        if name in self.known:
            return self.known[name]
        if points:
            return self._checked(self._load(points[0].value), points[0].value)
        known = self.names()
        others = nearest(name, known) or (
            f": the {self.kind}s are {', '.join(known)}, or module:Name for one of your own"
        )
        raise InputError(f"unknown {self.kind} {name!r}{others}")

    def _entry_points(self) -> tuple[EntryPoint, ...]:
        return installed(self.group, tuple(sys.path))

    def _load(self, text: str) -> Any:
        module, _, attribute = text.partition(":")
        if not module or not attribute:
            raise InputError(f"{self.kind} {text!r} is malformed: write module:Name")
        if os.getcwd() not in sys.path and "" not in sys.path:
            sys.path.insert(0, os.getcwd())  # as `python -m` does
        try:
            found: Any = importlib.import_module(module)
        except ModuleNotFoundError as error:
            missing = error.name or module
            hint = (
                f"install the package that has it, or run epcx in the folder of {missing}"
                if module == missing or module.startswith(f"{missing}.")
                else f"install {missing}, which it needs"
            )
            raise InputError(
                f"{self.kind} {text!r} cannot be imported: there is no module {missing!r}; {hint}"
            ) from None
        except (Exception, SystemExit) as error:
            first = (str(error).splitlines() or [""])[0]
            raise InputError(
                f"{self.kind} {text!r} cannot be imported: {type(error).__name__}: {first}"
            ) from None
        for part in attribute.split("."):
            found = getattr(found, part, None)
        if found is None:
            raise InputError(f"{self.kind} {text!r} does not exist: {module} has no {attribute!r}")
        return found

    def _checked(self, cls: Any, source: str) -> type[T]:
        if not isinstance(cls, type) or not issubclass(cls, self.base):
            raise InputError(
                f"{source} is not a {self.kind}: it is not a subclass of "
                f"{self.base.__module__}.{self.base.__qualname__}"
            )
        self.check(cls)
        return cls


def require(cls: type, base: type, kind: str, methods: tuple[str, ...], *names: str) -> None:
    """Refuses a class that lacks one of the attributes `names`, or leaves a method to its base."""
    for name in names:
        if not hasattr(cls, name):
            raise InputError(f"{kind} {reference(cls)} has no attribute {name!r}")
    for name in methods:
        if getattr(cls, name) is getattr(base, name):
            raise InputError(f"{kind} {reference(cls)} has no method {name!r}")
