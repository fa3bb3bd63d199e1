"""What a report says: its headline, and its sections in order."""

from collections.abc import Sequence

from epcx.evaluation.results import SCORE
from epcx.evolution.lineage import Lineage
from epcx.reports import figures
from epcx.reports.certainty import certainty
from epcx.reports.figures import label
from epcx.reports.findings import Findings, Pair, Section, slug
from epcx.reports.grids import NOTHING, Grid
from epcx.reports.learning import learning_curves, second_stage
from epcx.reports.scores import crossplay, generalisation, reference, scores, statistics, trained
from epcx.runs.files import json_digest
from epcx.study import YARDSTICK

ENOUGH = 5  # trainings, to take intervals over them at their word


def headline(findings: Findings) -> str:
    """Who is best, how often, where there is somebody to compare with."""
    methods = findings.study.methods
    means = [
        {method: cell.mean for method, cell in trained(findings, cells).items()}
        for cells in findings.table(SCORE).values()
    ]
    tasks = [some for some in means if len(some) > 1]
    if not tasks:
        return f"{', '.join(label(method) for method in methods)} on {findings.study.name}"
    wins = {m: sum(some.get(m) == max(some.values()) for some in tasks) for m in methods}
    most = max(wins.values())
    best = [label(method) for method in methods if wins[method] == most]
    if len(best) > 1:
        each = f"{most} of {len(tasks)} comparisons each"
        return f"{', '.join(best[:-1])} and {best[-1]} have the highest reward in {each}"
    return f"{best[0]} has the highest reward in {most} of {len(tasks)} comparisons"


def how_sure(findings: Findings) -> str:
    if findings.trials == 1:
        return (
            "There is one training of each method: nothing can be said about the spread over "
            "seeds, and no interval over seeds is shown. Where a number has ±, it is the "
            f"standard error over {findings.episodes:,} episodes of these trained agents."
        )
    rough = " From so few trainings intervals are rough." * (findings.trials < ENOUGH)
    return (
        f"Up to {findings.trials} independent trainings of each method. Ranges in brackets are 95% "
        "bootstrap intervals of the mean over trainings; each training was measured in "
        f"{findings.episodes:,} episodes.{rough}"
    )


def sections(findings: Findings, pairs: Sequence[Pair] = ()) -> list[Section]:
    made = [
        scores(findings),
        reference(findings),
        statistics(findings),
        certainty(findings),
        crossplay(findings),
        learning_curves(findings),
        second_stage(findings),
        generalisation(findings),
        evolution(findings),
        replays(pairs),
        what_was_run(findings),
    ]
    found = [section for section in made if section is not None]
    signature = " · ".join(f"{name} {value}" for name, value in findings.study.signature().items())
    for chart in (chart for section in found for chart in section.charts):
        chart.signature = signature
    return found


def evolution(findings: Findings) -> Section | None:
    """The lineages of EPC's runs."""
    text = (
        "All agent sets of the stages, the fittest on top, with their fitness. Filled ones were "
        "promoted. Lines lead to the sets that were joined, thick where a set was joined with "
        "itself. Orange: the best set of the last stage, and its ancestors."
    )
    section = Section("lineage", "Who descends from whom", [text])
    study = findings.study
    for number, (run, training) in enumerate(zip(study.runs, study.trainings, strict=True)):
        if training.method == YARDSTICK:
            lineage, name = Lineage.from_json(run.lineage()), run.path.resolve().name
            section.charts += [
                figures.family(
                    f"lineage-{number}-{slug(name)}-{role.name}",
                    f"{role.name}, seed {training.seed}",
                    lineage,
                    role.name,
                    f"Lineage of {role.name} in {name}",
                )
                for role in study.game.roles
            ]
    return section if section.charts else None


def replays(pairs: Sequence[Pair]) -> Section | None:
    text = "Each pair starts from the same positions. Press play, scrub, or step."
    return Section("replays", "Watch them", [text], pairs=list(pairs)) if pairs else None


def what_was_run(findings: Findings) -> Section:
    rows, file = [], []
    study = findings.study
    for run, training, method in zip(study.runs, study.trainings, study.variants, strict=True):
        made, result = run.made_with, run.result
        row = {
            "run": run.path.resolve().name,
            "method": method,
            "agents": " ".join(run.stages()),
            "seed": training.seed,
            "trainings": 1 if training.grows else run.ranks(run.stages()[-1]),
            "episodes_along_a_lineage": result.get("episodes_along_a_lineage"),
            "episodes_in_total": result.get("episodes_in_total"),
            "seconds": result.get("seconds"),
            "device": made.get("device"),
            "epcx": made.get("epcx"),
            "commit": made.get("commit"),
            "date": made.get("date"),
            "config": json_digest(run.settings)[:10],
        }
        file.append(row)
        shown = {
            "method": label(method),
            "agents": row["agents"],
            "seed": row["seed"],
            "trainings": row["trainings"],
            "episodes, each": in_thousands(row["episodes_along_a_lineage"]),
            "episodes, all": in_thousands(row["episodes_in_total"]),
            "time": minutes(row["seconds"]),
            "device": row["device"] or NOTHING,
            "commit": row["commit"] or row["epcx"] or NOTHING,
            "config": row["config"],
        }
        rows.append([str(value) for value in shown.values()])
    caption = "Episodes of each are those along one lineage; all are those of all its matches."
    return Section(
        "runs", "What was run", grids=[Grid("runs", caption, list(shown), rows, file, 2)]
    )


def in_thousands(number: object) -> str:
    return f"{number:,}" if isinstance(number, int) else NOTHING


def minutes(seconds: object) -> str:
    if not isinstance(seconds, int | float):
        return NOTHING
    whole, rest = divmod(round(seconds), 60)
    return f"{whole} min {rest:02} s"
