"""How games and learners are found: by name, module:Name, class, decorator and entry point.

What is refused is refused in one sentence.
"""

import importlib
import subprocess
import sys
from importlib.metadata import EntryPoint
from typing import NamedTuple

import pytest

from epcx import InputError, games, learners
from epcx.registry import Registry, reference

GAME = """
from epcx.games import Game, Role

class MyGame(Game):
    name = "my-game"
    roles = (Role("player", 2),)
    stages = ("2",)

    def reset(self, key): ...
    def step(self, key, world, actions): ...
    def observe(self, world): ...
"""
LEARNER = """
from dataclasses import dataclass
from epcx.games import Game
from epcx.learners import Learner

@dataclass(frozen=True)
class MyConfig:
    rate: float = 0.1

@dataclass(frozen=True)
class MyLearner(Learner):
    game: Game
    config: MyConfig
    name = "my-learner"
    Config = MyConfig

    def init(self, key): ...
    def start(self, key, agents): ...
    def advance(self, state, updates): ...
    def act(self, key, policies, observation, role=None): ...
    def updates(self, episodes): ...
    def episodes(self, updates): ...
"""


class Kind(NamedTuple):
    """A registry, and a class for it in a module outside the package."""

    registry: Registry
    module: str
    cls: str
    source: str
    built_in: type

    @property
    def name(self):
        return self.module.replace("_", "-")

    @property
    def reference(self):
        return f"{self.module}:{self.cls}"


KINDS = [
    Kind(games.REGISTRY, "my_game", "MyGame", GAME, games.Grassland),
    Kind(learners.REGISTRY, "my_learner", "MyLearner", LEARNER, learners.MADDPG),
]


@pytest.fixture(params=KINDS, ids=["game", "learner"])
def kind(request):
    return request.param


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes modules into the current folder; imports and registrations are undone afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for registry in (games.REGISTRY, learners.REGISTRY):
        monkeypatch.setattr(registry, "known", dict(registry.known))

    def write(**sources):
        for module, source in sources.items():
            (tmp_path / f"{module}.py").write_text(source)
        importlib.invalidate_caches()

    yield write
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def announce(monkeypatch, kind, *values, name=None):
    """Lets installed packages announce entry points under one name."""
    points = [EntryPoint(name or kind.name, value, kind.registry.group) for value in values]
    monkeypatch.setattr(Registry, "_entry_points", lambda registry: points)


def install(folder, kind):
    """A real distribution: its metadata lies in a folder of the path."""
    info = folder / "plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{kind.registry.group}]\n{kind.name} = {kind.reference}\n"
    )


def refused(kind, name):
    """The sentence by which a name is refused."""
    with pytest.raises(InputError) as caught:
        kind.registry.find(name)
    message = str(caught.value)
    assert "\n" not in message
    return message


# What is found


def test_built_in_classes_are_found_by_name_reference_and_class(kind):
    built_in = kind.built_in
    assert built_in.name in kind.registry.names()
    for name in (built_in.name, reference(built_in), built_in):
        assert kind.registry.find(name) is built_in


def test_class_is_found_through_the_current_folder(kind, write):
    write(**{kind.module: kind.source})
    found = kind.registry.find(kind.reference)
    assert reference(found) == kind.reference
    assert kind.registry.find(found) is found
    assert kind.name not in kind.registry.names()  # it was not registered


def test_nested_class_is_found(kind, write):
    write(**{kind.module: f"{kind.source}\nclass Outer:\n    Inner = {kind.cls}\n"})
    assert kind.registry.find(f"{kind.module}:Outer.Inner").__name__ == kind.cls


def test_decorated_class_is_found_by_name(kind, write, tmp_path):
    package = {"game": "games", "learner": "learners"}[kind.registry.kind]
    plain = f"@dataclass(frozen=True)\nclass {kind.cls}"
    plain = plain if plain in kind.source else f"class {kind.cls}"
    decorated = kind.source.replace(plain, f"@epcx.{package}.register\n{plain}")
    write(**{kind.module: f"import epcx\n{decorated}"})
    sys.path.insert(0, str(tmp_path))
    module = importlib.import_module(kind.module)
    assert kind.registry.find(kind.name) is getattr(module, kind.cls)
    assert kind.registry.names()[-1] == kind.name


def test_class_may_be_registered_again_after_a_reload(kind, write):
    write(**{kind.module: kind.source})
    first = kind.registry.register(kind.registry.find(kind.reference))
    again = getattr(importlib.reload(sys.modules[kind.module]), kind.cls)
    assert again is not first
    kind.registry.register(again)
    assert kind.registry.find(kind.name) is again


def test_class_is_found_by_the_entry_point_of_an_installed_package(kind, write, tmp_path):
    write(**{kind.module: kind.source})
    install(tmp_path, kind)
    sys.path.insert(0, str(tmp_path))
    importlib.invalidate_caches()
    assert kind.registry.names()[-1] == kind.name
    assert reference(kind.registry.find(kind.name)) == kind.reference


def test_package_that_is_installed_later_is_found(kind, write, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    assert "unknown" in refused(kind, kind.name)
    write(**{kind.module: kind.source})
    install(tmp_path, kind)
    importlib.invalidate_caches()
    assert reference(kind.registry.find(kind.name)) == kind.reference


def test_metadata_of_packages_is_read_once(kind, monkeypatch, tmp_path):
    read = []
    monkeypatch.setattr("epcx.registry.entry_points", lambda group: read.append(group) or [])
    monkeypatch.syspath_prepend(tmp_path)  # a path that has not been looked at yet
    for _ in range(3):
        kind.registry.find(kind.built_in.name)
    assert read == [kind.registry.group]


def test_entry_point_of_a_registered_class_is_not_ambiguous(kind, write, monkeypatch):
    write(**{kind.module: kind.source})
    found = kind.registry.register(kind.registry.find(kind.reference))
    announce(monkeypatch, kind, kind.reference, kind.reference)
    assert kind.registry.find(kind.name) is found
    assert kind.registry.names().count(kind.name) == 1


# What is refused


def test_unknown_name_is_refused_with_the_known_ones(kind):
    message = refused(kind, "chess")
    assert message.startswith(f"unknown {kind.registry.kind} 'chess': the {kind.registry.kind}s")
    assert kind.built_in.name in message


@pytest.mark.parametrize("text", [":", "module:", ":Name"])
def test_malformed_reference_is_refused(kind, text):
    assert f"{text!r} is malformed: write module:Name" in refused(kind, text)


@pytest.mark.parametrize("text", ["no_such_module:Name", "epcx.no_such_module:Name"])
def test_reference_to_a_missing_module_is_refused(kind, text):
    message = refused(kind, text)
    assert f"there is no module {text.partition(':')[0]!r}; install the package" in message


def test_module_that_needs_a_missing_package_is_refused(kind, write):
    write(**{kind.module: f"import no_such_package\n{kind.source}"})
    message = refused(kind, kind.reference)
    assert "there is no module 'no_such_package'; install no_such_package, which it" in message


@pytest.mark.parametrize("attribute", ["Missing", "Missing.Inner", "a b", "A:B"])
def test_reference_to_a_missing_attribute_is_refused(kind, write, attribute):
    write(**{kind.module: kind.source})
    message = refused(kind, f"{kind.module}:{attribute}")
    assert f"does not exist: {kind.module} has no {attribute!r}" in message


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("raise ValueError('first line\\nsecond line')", "ValueError: first line"),
        ("raise RuntimeError", "RuntimeError: "),
        ("import sys; sys.exit('goodbye')", "SystemExit: goodbye"),
        ("def broken(", "SyntaxError: "),
    ],
)
def test_module_that_fails_at_import_is_refused(kind, write, line, message):
    write(**{kind.module: line})
    assert f"{kind.reference!r} cannot be imported: {message}" in refused(kind, kind.reference)


@pytest.mark.parametrize("source", ["{} = 5", "class {}: pass", "def {}(): pass"])
def test_what_is_no_class_of_its_kind_is_refused(kind, write, source):
    write(**{kind.module: source.format(kind.cls)})
    message = refused(kind, kind.reference)
    assert message.startswith(f"{kind.reference} is not a {kind.registry.kind}: it is not a sub")


def test_other_classes_are_refused(kind):
    assert f"builtins:int is not a {kind.registry.kind}" in refused(kind, int)


def test_names_of_other_types_are_refused():
    """In a process of its own, since the tests check types before the registry does."""
    code = "from epcx import games, learners\nfor find in (games.find, learners.find):\n"
    code += "    try: find(5)\n    except ValueError as error: print(error)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.splitlines() == [
        "5 is not a game: give its name, module:Name or class",
        "5 is not a learner: give its name, module:Name or class",
    ]


def remove_method(source, name):
    """The source without the line that defines a method."""
    return "\n".join(line for line in source.splitlines() if f"def {name}(" not in line)


@pytest.mark.parametrize("method", ["reset", "step", "observe"])
def test_game_without_a_required_method_is_refused(write, method):
    write(my_game=remove_method(GAME, method))
    assert refused(KINDS[0], "my_game:MyGame") == f"game my_game:MyGame has no method {method!r}"


@pytest.mark.parametrize("method", ["init", "start", "advance", "act", "updates", "episodes"])
def test_learner_without_a_required_method_is_refused(write, method):
    write(my_learner=remove_method(LEARNER, method))
    message = refused(KINDS[1], "my_learner:MyLearner")
    assert message == f"learner my_learner:MyLearner has no method {method!r}"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('name = "my-game"', "game my_game:MyGame has no attribute 'name'"),
        ('roles = (Role("player", 2),)', "game my_game:MyGame has no attribute 'roles'"),
        ('stages = ("2",)', "game my_game:MyGame has no attribute 'stages'"),
    ],
)
def test_game_without_a_required_attribute_is_refused(write, line, message):
    write(my_game=GAME.replace(line, ""))
    assert refused(KINDS[0], "my_game:MyGame") == message


@pytest.mark.parametrize(
    ("line", "wrong", "message"),
    [
        ('stages = ("2",)', "stages = ()", "needs at least one stage, and roles of type Role"),
        ('stages = ("2",)', 'stages = ("two",)', "population 'two' is malformed"),
        ('roles = (Role("player", 2),)', "roles = ()", "at least one stage, and roles of type"),
        ('roles = (Role("player", 2),)', 'roles = ("player",)', "and roles of type Role"),
    ],
)
def test_game_with_a_wrong_attribute_is_refused(write, line, wrong, message):
    assert line in GAME
    write(my_game=GAME.replace(line, wrong))
    assert message in refused(KINDS[0], "my_game:MyGame")


@pytest.mark.parametrize(
    ("line", "wrong", "message"),
    [
        ("    Config = MyConfig\n", "", "has no attribute 'Config'"),
        ('    name = "my-learner"\n', "", "has no attribute 'name'"),
        ("    Config = MyConfig\n", "    Config = dict\n", "its Config is not a frozen dataclass"),
        (
            "@dataclass(frozen=True)\nclass MyConfig",
            "@dataclass\nclass MyConfig",
            "its Config is not a frozen dataclass",
        ),
        (
            "@dataclass(frozen=True)\nclass MyLearner",
            "class MyLearner",
            "the class is not a frozen dataclass",
        ),
    ],
)
def test_learner_with_a_wrong_attribute_is_refused(write, line, wrong, message):
    assert line in LEARNER
    write(my_learner=LEARNER.replace(line, wrong))
    assert message in refused(KINDS[1], "my_learner:MyLearner")


def test_second_class_of_a_registered_name_is_refused(kind, write):
    write(**{kind.module: kind.source, "other": kind.source})
    kind.registry.register(kind.registry.find(kind.reference))
    with pytest.raises(InputError) as caught:
        kind.registry.register(kind.registry.find(f"other:{kind.cls}"))
    assert str(caught.value) == (
        f"two {kind.registry.kind}s are called {kind.name!r}: {kind.reference} and "
        f"other:{kind.cls}; rename one of them"
    )


def test_class_with_the_name_of_a_built_in_one_is_refused(kind, write):
    write(**{kind.module: kind.source.replace(kind.name, kind.built_in.name)})
    with pytest.raises(InputError, match=f"two {kind.registry.kind}s are called") as caught:
        kind.registry.register(kind.registry.find(kind.reference))
    assert "\n" not in str(caught.value)
    assert kind.registry.find(kind.built_in.name) is kind.built_in


def test_two_entry_points_of_one_name_are_ambiguous(kind, write, monkeypatch):
    write(**{kind.module: kind.source, "other": kind.source})
    announce(monkeypatch, kind, kind.reference, f"other:{kind.cls}")
    message = refused(kind, kind.name)
    assert f"{kind.name!r} is ambiguous: {kind.reference} and other:{kind.cls} have" in message
    assert reference(kind.registry.find(f"other:{kind.cls}")) == f"other:{kind.cls}"


def test_entry_point_with_the_name_of_a_built_in_class_is_ambiguous(kind, write, monkeypatch):
    write(**{kind.module: kind.source})
    announce(monkeypatch, kind, kind.reference, name=kind.built_in.name)
    message = refused(kind, kind.built_in.name)
    assert f"is ambiguous: {reference(kind.built_in)} and {kind.reference} have" in message


def test_entry_point_to_a_broken_class_is_refused(kind, write, monkeypatch):
    announce(monkeypatch, kind, f"no_such_module:{kind.cls}")
    assert "there is no module 'no_such_module'" in refused(kind, kind.name)
    write(**{kind.module: f"{kind.cls} = 5"})
    announce(monkeypatch, kind, kind.reference)
    assert f"{kind.reference} is not a {kind.registry.kind}" in refused(kind, kind.name)
