"""The hub: names that lead to published runs, in a folder or downloaded and verified."""

import functools
import hashlib
import http.server
import json
import shlex
import shutil
import threading
from dataclasses import asdict, replace

import pytest

import epcx
from epcx import commands, hub, options
from epcx.cards import TEAM, Card, headline, measure, to_markdown, train_command
from epcx.cli import main
from epcx.config import TrainConfig
from epcx.evaluation.players import FixedPlayers
from epcx.evaluation.tournament import Tournament
from epcx.hub import Score, WebHub, resolve
from epcx.presets import make_config
from epcx.publish import bundled, make_index, publish, write_index
from tests.factories import make_run
from tests.test_results import FOLDER

RESULTS = FOLDER.parent
SCORE = Score("2", "collector", TEAM, None, 10.0, 0.5)
FIXED = Score("2", "collector", "scripted", None, 20.0, 0.5)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A hub of two teams of Food Collection, as a folder."""
    folder = tmp_path_factory.mktemp("hub")
    card = Card("MIT", 100, (SCORE, FIXED))
    for name, method, populations in (("epc", "epc", ["1", "2"]), ("flat", "maddpg", ["2"])):
        run = make_run(folder / "runs" / name, "food-collection", method, populations)
        made = (lambda copy: card) if name == "epc" else None
        publish(run, folder / "hub" / "food" / name, card=made)
    write_index(folder / "hub")
    return folder / "hub"


@pytest.fixture
def server(published, tmp_path, monkeypatch):
    """The address of a copy of the hub, whose folder is `server.folder`; an empty cache."""
    folder = tmp_path / "served"
    shutil.copytree(published, folder)
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            asked.append(self.path)

    handler = functools.partial(Handler, directory=folder)
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    httpd.folder, httpd.asked = folder, asked
    httpd.url = f"http://127.0.0.1:{httpd.server_address[1]}"
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("EPCX_HUB", httpd.url)
    yield httpd
    httpd.shutdown()
    httpd.server_close()
    thread.join()


def downloaded(tmp_path):
    """What the cache has, but for the index."""
    files = (tmp_path / "cache" / "epcx" / "hub").rglob("*")
    return [path for path in files if path.name != hub.INDEX]


def change_index(folder, change):
    index = json.loads((folder / hub.INDEX).read_text())
    change(index["teams"][0])
    (folder / hub.INDEX).write_text(json.dumps(index))


def test_index_has_all_files_with_sizes_and_checksums(published):
    index = hub.FolderHub(published).index()
    assert [team.name for team in index.teams] == ["food/epc", "food/flat"]
    team = index.teams[0]
    assert (team.game, team.method, team.populations) == ("food-collection", "epc", ("1", "2"))
    assert (team.licence, team.episodes, team.scores) == ("MIT", 100, (SCORE, FIXED))
    assert index.teams[1].licence is None
    on_disk = [path for path in (published / "food" / "epc").rglob("*") if path.is_file()]
    assert {file.path for file in team.files} == {
        path.relative_to(published / "food" / "epc").as_posix() for path in on_disk
    }
    for file in team.files:
        content = (published / "food" / "epc" / file.path).read_bytes()
        assert (file.size, file.sha256) == (len(content), hashlib.sha256(content).hexdigest())


def test_hub_names_stand_for_runs_everywhere(published, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("EPCX_HUB", str(published))
    team = epcx.load("hub:food/epc", population="2")
    assert team.source.run.path == published / "food" / "epc"
    assert epcx.Run("hub:food/epc").path == published / "food" / "epc"
    main(["lineage", "hub:food/epc"])
    assert "collector" in capsys.readouterr().out
    main(["evaluate", "hub:food/flat", "--episodes", "10", "--json"])
    assert json.loads(capsys.readouterr().out)["method"] == "maddpg"
    played = epcx.crossplay(["hub:food/epc@2", "hub:food/epc@1"], population="2", episodes=10)
    assert played.names == ("epc@2", "epc@1")
    epcx.replay("hub:food/epc", out=tmp_path / "replay.json")
    train = ["train", "food-collection", "--preset", "smoke", "--population", "4", "--dry-run"]
    main([*train, "--init-from", "hub:food/epc@2"])
    assert "food-collection, epc" in capsys.readouterr().out


def test_copy_that_is_being_made_is_no_team_yet(published, tmp_path):
    hub = tmp_path / "hub"
    shutil.copytree(published, hub)
    shutil.copytree(hub / "food" / "epc", hub / "food" / ".epc-0123456789ab")
    assert make_index(hub) == make_index(published)


def test_teams_command_lists_the_hub(published, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "170")
    main(["teams", "--hub", str(published)])
    shown = capsys.readouterr().out
    row = next(line for line in shown.splitlines() if "food/epc" in line)
    assert "1 2" in row
    assert row.index("10.0 ± 0.5") < row.index("20.0 ± 0.5")
    assert "epcx evaluate hub:food/epc" in shown
    main(["teams", "--hub", str(published), "--json"])
    index = json.loads(capsys.readouterr().out)
    assert index == json.loads((published / hub.INDEX).read_text())


def test_team_is_downloaded_once_and_verified(server, published, tmp_path, capsys):
    team = epcx.load("hub:food/epc", population="2")
    ours = epcx.load(published / "food" / "epc", population="2")
    assert team.players["collector"].digest == ours.players["collector"].digest
    assert server.asked
    (folder,) = (tmp_path / "cache" / "epcx" / "hub").glob("*/*/food/epc")
    for path in (published / "food" / "epc").rglob("*.*"):
        assert (folder / path.relative_to(published / "food" / "epc")).exists()
    server.shutdown()
    server.server_close()  # the second load is offline
    assert resolve("hub:food/epc") == folder
    with pytest.raises(epcx.InputError, match="cannot be reached: connection refused"):
        resolve("hub:food/flat")


def test_teams_command_renews_the_index(server, capsys):
    old = resolve("hub:food/epc")
    (server.folder / "food" / "epc" / "README.md").write_text("changed")
    write_index(server.folder)
    assert resolve("hub:food/epc") == old  # what is there is used
    main(["teams"])
    new = resolve("hub:food/epc")
    assert (new / "README.md").read_text() == "changed"
    assert (old / "README.md").read_text() != "changed"


@pytest.mark.parametrize(
    "path", ["../../x", "/x", "a/../../x", "a//x", "..\\x", "C:x", ".x", "a\0"]
)
def test_index_that_leads_out_of_its_folder_is_refused(server, tmp_path, error_of, path):
    def change_file(team):
        team["files"][0]["path"] = path

    change_index(server.folder, change_file)
    assert "is not a path within a folder" in error_of("lineage", "hub:food/epc")
    change_index(server.folder, lambda team: team.update(name=path))
    assert "is not a path within a folder" in error_of("teams")
    assert not [path for path in downloaded(tmp_path) if path.is_file()]


def test_failed_download_is_one_sentence_and_leaves_nothing(server, tmp_path, error_of):
    weights = server.folder / "food" / "epc" / "agents" / "2" / "0" / "collector.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + b"x")
    assert "its checksum is another one" in error_of("lineage", "hub:food/epc")
    weights.write_bytes(content + b"x")
    assert "its checksum is another one" in error_of("lineage", "hub:food/epc")
    weights.unlink()
    message = error_of("lineage", "hub:food/epc")
    assert message.endswith("collector.safetensors cannot be read: HTTP 404 File not found")
    assert [path for path in downloaded(tmp_path) if path.is_file()] == []
    weights.write_bytes(content)
    assert resolve("hub:food/epc").is_dir()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "it is not JSON"),
        ("[]", "it is [], not an object"),
        ('{"format": "epcx hub 9", "teams": []}', "format is 'epcx hub 9'"),
        ('{"format": "epcx hub 1", "teams": [{"name": 3}]}', "teams[0].name is 3, not text"),
        ('{"format": "epcx hub 1", "teams": []}', "has no team 'food/epc'"),
    ],
)
def test_damaged_index_is_one_sentence(server, error_of, content, complaint):
    (server.folder / hub.INDEX).write_text(content)
    assert complaint in error_of("lineage", "hub:food/epc")


def test_places_that_are_no_hub_are_refused(error_of, tmp_path, monkeypatch):
    assert "is not a hub: index.json cannot be read" in error_of("teams", "--hub", tmp_path)
    assert "neither a folder nor an address" in error_of("teams", "--hub", "ftp://127.0.0.1/x")
    assert "has no folders of finished runs" in error_of("teams", "--write-index", tmp_path)
    assert "cannot be re" in error_of("teams", "--hub", "http://127.0.0.1:1")
    assert "cannot be read" in error_of("teams", "--hub", "http://127.0.0.1:x")
    monkeypatch.setenv("EPCX_HUB", str(RESULTS))
    assert "has no team 'nobody'" in error_of("evaluate", "hub:nobody")


def test_bundled_teams_are_one_of_epc_for_every_game(published):
    team = hub.FolderHub(published).index().teams[0]
    teams = [
        replace(team, name=name, game=name[0], method=method, trained_with=settings, seed=seed)
        for name, method, settings, seed in (
            ("a/epc", "epc", "preset paper", 0),
            ("a/best-1", "epc", "preset best", 1),
            ("a/best", "epc", "preset best", 0),
            ("a/maddpg", "maddpg", "preset best", 0),
            ("b/epc", "epc", "preset paper", 3),
            ("c/maddpg", "maddpg", "preset paper", 0),
        )
    ]
    assert bundled(teams) == {"a/best", "b/epc"}


# Cards


def test_scores_are_those_of_games_with_fixed_players(tmp_path):
    run = make_run(tmp_path / "run", "grassland", "epc", ("1-1",))
    measured = measure(run, 20)
    scores = {(s.role, s.player, s.against): s.mean for s in measured}
    team, tournament = epcx.load(run.path), Tournament(epcx.games.make("grassland", "1-1"))
    assert scores["wolf", TEAM, TEAM] == team.play(20)["wolf"]["reward"]["mean"]
    players = {**team.players, "wolf": FixedPlayers("scripted").player(team.game, "wolf")}
    expected = tournament.play(players, 20)["sheep"]["reward"]["mean"]
    assert scores["sheep", TEAM, "scripted"] == expected
    assert len(scores) == 6
    page = to_markdown(run, Card("MIT", 20, measured))
    assert f"| 1-1 | sheep | {scores['sheep', TEAM, TEAM]:.2f} ±" in page
    assert "Licence: MIT." in page
    ((role, mine, fixed), _) = headline(measured)
    assert (role, mine.against, fixed.player) == ("sheep", "scripted", "scripted")
    assert mine.mean == expected


@pytest.mark.parametrize("name", ["epc", "epc-best", "maddpg-24", "vanilla-pc", "mean-field-12"])
def test_command_of_a_card_gives_the_settings_of_the_run(name):
    config = epcx.Run(FOLDER / name).config
    _, command, *words = shlex.split(train_command(config))
    kind = commands.find(command)
    types = kind.types(options.read(kind, words, strict=False))
    given = options.read(kind, words, types)
    assert (
        options.build(kind, given, kind.default(given), types).settings.to_json()
        == config.to_json()
    )


def test_command_of_a_card_names_other_learners_and_options():
    config = make_config("grassland", preset="quick", learner="mappo")
    assert "--learner mappo" in train_command(config)
    assert "--preset quick" in train_command(config)
    assert "--population 3-2 6-4" in train_command(
        TrainConfig("grassland", population=("3-2", "6-4"))
    )


# The published results


def test_index_of_the_results_is_up_to_date():
    kept = json.loads((RESULTS / hub.INDEX).read_text())
    made = json.loads(json.dumps(asdict(make_index(RESULTS))))
    assert kept == made, "run: epcx teams --write-index results"


def test_results_are_the_default_hub_and_the_bundle_is_small(monkeypatch):
    monkeypatch.delenv("EPCX_HUB", raising=False)
    index = hub.open_hub().index()
    assert resolve("hub:food-collection/epc-best") == FOLDER / "epc-best"
    chosen = [team for team in index.teams if team.bundled]
    assert {team.game for team in chosen} == {t.game for t in index.teams if t.method == "epc"}
    assert sum(team.size for team in chosen) < 8e6
    for team in chosen:
        assert team.licence == "Apache-2.0"
        assert headline(team.scores)


def test_address_of_a_hub_has_no_slash_at_its_end():
    assert hub.open_hub("https://example.org/teams/") == WebHub("https://example.org/teams")
