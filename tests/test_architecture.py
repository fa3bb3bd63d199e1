"""Dependencies point one way: docs/architecture.md states the rule."""

import ast
from pathlib import Path

import pytest

import epcx

PACKAGE = Path(epcx.__file__).parent
BASE = {"errors", "backends", "registry", "cache", "options", "callbacks", "typed_json"}
ALLOWED = {
    "games": BASE,
    "networks": BASE | {"games"},
    "learners": BASE | {"games", "networks"},
    "runs": BASE,
    "execution": BASE | {"games", "learners", "runs"},
    "evolution": BASE | {"games"},
    "adapters": BASE | {"games", "reports"},
}


def imported(path):
    """The parts of epcx that a module imports, such as games or config."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "epcx":
            names = [f"epcx.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            if top == "epcx" and rest and rest != "__version__":
                yield rest.partition(".")[0]


@pytest.mark.parametrize("part", ALLOWED)
def test_package_imports_only_what_is_below_it(part):
    for path in (PACKAGE / part).rglob("*.py"):
        beyond = set(imported(path)) - ALLOWED[part] - {part}
        assert not beyond, f"{path.relative_to(PACKAGE)} imports {beyond}"


def test_only_reports_commands_and_library_import_reports():
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(("reports/", "commands/")) and name not in (
            "library.py",
            "teams.py",  # draws itself in notebooks
            "adapters/rendering.py",  # draws the episode of an environment
        ):
            assert "reports" not in set(imported(path)), name
