"""Puts the teams that the index of results/ calls bundled into the wheel, with an index of them."""

import json
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

RESULTS = "results"
PLACE = "epcx/published"


class BundleTeams(BuildHookInterface):
    """A hook of the wheel's build."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        index = Path(self.root, RESULTS, "index.json")
        if version == "editable" or not index.exists():
            return  # a checkout uses results/ itself
        content = json.loads(index.read_text())
        content["teams"] = [team for team in content["teams"] if team["bundled"]]
        self.temporary = tempfile.TemporaryDirectory()
        ours = Path(self.temporary.name, "index.json")
        ours.write_text(json.dumps(content, indent=1) + "\n")
        build_data["force_include"][str(ours)] = f"{PLACE}/index.json"
        for team in content["teams"]:
            source = Path(self.root, RESULTS, team["name"])
            build_data["force_include"][str(source)] = f"{PLACE}/{team['name']}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "temporary"):
            self.temporary.cleanup()
