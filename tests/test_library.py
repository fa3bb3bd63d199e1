"""epcx from Python: what the functions return, and what they refuse."""

import jax
import pytest

import epcx
from epcx import games
from epcx.errors import InputError
from epcx.execution.execution_options import ExecutionOptions
from epcx.learners import MADDPGConfig
from tests.factories import RecordingCallback

SMALL = {"preset": "smoke", "population": "1", "method": "mean-field"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    callback = RecordingCallback()
    out = tmp_path_factory.mktemp("runs") / "one"
    return epcx.train("food-collection", out=out, callback=callback, **SMALL), callback


def test_train_returns_a_run_whose_team_plays(trained):
    run, _ = trained
    assert run.result["ended"] == "finished"
    assert run.config.method == "mean-field"
    assert run.metrics()[-1]["episodes"] == run.result["episodes_along_a_lineage"]
    assert {record.role for record in run.lineage().records} == {"collector"}
    assert run.team().play(episodes=10)["collector"]["reward"].keys() == {"mean", "error"}


def test_train_reports_progress_to_the_callback(trained):
    _, callback = trained
    assert callback.stages == ["1  (1/1)"]
    assert callback.episodes[-1] == callback.totals[0]
    assert any("CPU" in message for message in callback.messages)


def test_resume_of_a_finished_run_changes_nothing(trained):
    run, _ = trained
    before = (run.path / "result.json").read_bytes()
    assert epcx.resume(run, callback=epcx.NullCallback()).result == run.result
    assert (run.path / "result.json").read_bytes() == before


def test_load_evaluate_and_crossplay_agree(trained):
    run, _ = trained
    played = epcx.load(run).play(episodes=20, seed=3)
    assert epcx.evaluate(run, episodes=20, seed=3).roles() == played
    cross = epcx.crossplay([run, "random"], episodes=20, seed=3, callback=epcx.NullCallback())
    assert cross.pairings[0].roles == played
    assert cross.names == ("mean-field", "random")


def test_replay_of_a_run_and_of_a_game(trained, tmp_path):
    run, _ = trained
    title = f"run {run.path.name}: mean-field of stage 1, match 0"
    assert epcx.replay(run, out=tmp_path / "a.json").title == title
    assert epcx.replay(tmp_path / "a.json").steps == 25
    assert epcx.replay("grassland", players="random", seed=1).title == "Random players"
    with pytest.raises(InputError, match="--stage 1 does not go with the game grassland"):
        epcx.replay("grassland", stage="1")


def test_report_is_written(trained, tmp_path):
    run, _ = trained
    report = epcx.report([run], out=tmp_path / "report", episodes=20, callback=epcx.NullCallback())
    assert report.page == tmp_path / "report" / "index.html"
    assert report.data.results


def test_runs_teams_and_replays_show_themselves_in_notebooks(trained):
    run, _ = trained
    assert "food-collection, mean-field, 1: finished" in run._repr_html_()
    shown = run.team()._repr_html_()
    assert shown.startswith("<iframe")
    assert "mean-field of stage 1" in shown
    assert repr(run.team()) == "Team(food-collection 1, mean-field of stage 1)"


def test_configure_takes_settings_of_training_and_learner():
    config = epcx.configure(
        games.Grassland, preset="quick", episodes=4000, learning_rate=0.002, population=["2-1"]
    )
    assert (config.game, config.episodes, config.population) == ("grassland", 4000, ("2-1",))
    assert config.learner_config == MADDPGConfig(
        learning_rate=0.002,
        batch_size=128,
        buffer_size=100_000,
        steps_per_update=2,
        learning_starts=2_500,
    )


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"lerning_rate": 0.1}, "unknown setting 'lerning_rate': did you mean learning_rate?"),
        ({"method": "ppo"}, "unknown method 'ppo'"),
        ({"learner": "ppo"}, "unknown learner 'ppo'"),
        ({"method": "maddpg", "network": "attention"}, "network attention does not go with"),
        ({"network": "mlp"}, "mlp networks are made for one population"),
    ],
)
def test_bad_settings_are_refused_in_one_sentence(settings, complaint):
    with pytest.raises(InputError, match=complaint.replace("?", r"\?")) as refused:
        _ = epcx.configure("food-collection", **settings).curriculum
    assert "\n" not in str(refused.value)


def test_train_refuses_bad_input_before_it_makes_a_folder(tmp_path):
    for settings in ({"checkpoint_minutes": -1.0}, {"execution": ExecutionOptions(devices=99)}):
        with pytest.raises(InputError):
            epcx.train("food-collection", out=tmp_path / "run", **SMALL, **settings)
    assert not (tmp_path / "run").exists()


def test_a_game_of_a_script_trains_and_is_named_by_its_module(tmp_path):
    """Such a game can be evaluated in the same process."""

    class Orchard(games.FoodCollection):
        name = "orchard"
        stages = ("1", "2")

    globals()["Orchard"] = Orchard
    Orchard.__qualname__ = "Orchard"
    run = epcx.train(Orchard, out=tmp_path / "run", callback=epcx.NullCallback(), **SMALL)
    assert run.config.game == f"{__name__}:Orchard"
    world = run.team().game.reset(jax.random.key(0))
    assert run.team().act(jax.random.key(1), world).shape == (1, 5)
