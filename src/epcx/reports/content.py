"""What a report says: sections with sentences, tables and charts, from the results of a study."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from epcx.evaluation import statistics
from epcx.evaluation.results import (
    CROSSPLAY,
    CURVE,
    GENERALISATION,
    REFERENCE,
    SCORE,
    Cell,
    Result,
    Table,
    normalise,
    scores_of,
    tabulate,
)
from epcx.evolution.lineage import Lineage
from epcx.reports import figures, paper
from epcx.reports.figures import Chart, label
from epcx.reports.grids import NOTHING, SCRIPT_NAMES, Entry, Grid, entry, file_cell, score_grid
from epcx.reports.replay import Replay
from epcx.runs.files import json_digest
from epcx.runs.run import MADE_WITH
from epcx.study import YARDSTICK, Study, base
from epcx.training import GROWING

SMOOTH = 5  # log lines that a point of a learning curve averages
STATISTICS = {  # what there is beside rewards, and what it is called
    "coverage": "share of the food occupied at the end",
    "ate": "pellets eaten per episode",
    "survival": "share alive at the end",
    "killed": "kills per episode",
    "touched": "contacts per episode",
}
GOOD = ("coverage", "ate", "survival")  # of which more is better


@dataclass(frozen=True)
class Pair:
    """Episodes to be watched side by side, from the same start."""

    title: str
    replays: tuple[Replay, ...]


@dataclass
class Section:
    name: str
    title: str
    text: list[str]
    grids: list[Grid] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)


class Content:
    """All sections of a report about one study."""

    def __init__(self, study: Study, results: Sequence[Result], episodes: int):
        self.study, self.results, self.episodes = study, list(results), episodes
        self.alone = len(study.game.roles) == 1

    def table(self, purpose: str, statistic: str = "reward") -> Table:
        return tabulate(self.results, purpose, statistic, self.study.merged)

    @property
    def trials(self) -> int:
        """Of the method that has most."""
        return max(self.study.number_of_trials(p) for p in self.study.populations)

    @property
    def yardstick(self) -> str:
        return self.study.yardstick(self.study.populations[-1])

    # In a few words

    def headline(self) -> str:
        """Who is best, how often."""
        wins: dict[str, int] = {}
        table = {
            task: {m: cell for m, cell in cells.items() if m not in SCRIPT_NAMES}
            for task, cells in self.table(SCORE).items()
        }
        for cells in table.values():
            best = max(cells, key=lambda method: cells[method].mean)
            wins[best] = wins.get(best, 0) + 1
        if len(self.study.methods) < 2:
            return f"{label(self.study.methods[0])} on {self.study.name}"
        method = max(wins, key=lambda name: wins[name])
        comparisons = f"{wins[method]} of {len(table)} comparisons"
        return f"{label(method)} has the highest reward in {comparisons}"

    def how_sure(self) -> str:
        if self.trials == 1:
            return (
                "There is one training of each method: nothing can be said about the spread over "
                "seeds, and no interval over seeds is shown. Where a number has ±, it is the "
                f"standard error over {self.episodes:,} episodes of these trained agents."
            )
        return (
            f"Up to {self.trials} independent trainings of each method. Ranges in brackets are 95% "
            "bootstrap intervals of the mean over trainings; each training was measured in "
            f"{self.episodes:,} episodes."
        )

    def sections(self, pairs: Sequence[Pair] = ()) -> list[Section]:
        made = [
            self.scores(),
            self.reference(),
            self.statistics(),
            self.over_trials(),
            self.crossplay(),
            self.learning_curves(),
            self.second_stage(),
            self.generalisation(),
            self.evolution(),
        ]
        if pairs:
            text = ["Each pair starts from the same positions. Press play, scrub, or step."]
            made.append(Section("replays", "Watch them", text, pairs=list(pairs)))
        made.append(self.what_was_run())
        signature = " · ".join(f"{name} {value}" for name, value in self.study.signature().items())
        for chart in (chart for section in made if section for chart in section.charts):
            chart.signature = signature
        return [section for section in made if section is not None]

    # What was run

    def what_was_run(self) -> Section:
        rows, file = [], []
        everything = zip(self.study.runs, self.study.trainings, self.study.variants, strict=True)
        for run, training, method in everything:
            made, result = run.config.get(MADE_WITH) or {}, run.result
            asked = {name: value for name, value in run.config.items() if name != MADE_WITH}
            row = {
                "run": run.path.name,
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
                "config": json_digest(asked)[:10],
            }
            file.append(row)
            rows.append(
                [
                    label(method),
                    str(row["agents"]),
                    str(row["seed"]),
                    str(row["trainings"]),
                    f"{row['episodes_along_a_lineage']:,}",
                    f"{row['episodes_in_total']:,}",
                    minutes(result.get("seconds")),
                    str(row["device"] or "unknown"),
                    str(row["commit"] or row["epcx"] or "unknown"),
                    str(row["config"]),
                ]
            )
        header = (
            "method agents seed trainings episodes,|each episodes,|all time device commit config"
        )
        grid = Grid(
            "runs",
            "Episodes of each are those along one lineage; all are those of all its matches.",
            [name.replace("|", " ") for name in header.split(" ")],
            rows,
            file,
            2,
        )
        return Section("runs", "What was run", [], [grid])

    # Scores

    def scores(self) -> Section:
        raw = self.table(SCORE)
        normalised = normalise(raw, self.study.methods)
        published = paper.scores(self.study.name)
        section = Section("scores", "Scores", [self.scoring()])
        for role in roles_of(raw):
            groups, name = by_population(raw, role), f"scores-{slug(role)}"
            said = {p: v for (p, who), v in published.items() if who == role and p in groups}
            section.grids.append(score_grid(name, f"Reward of {role}", groups, role, published))
            section.charts.append(
                figures.bars(name, f"Reward of {role}", "reward per episode", groups, said, "")
            )
            if len(self.study.methods) > 1:
                section.charts.append(
                    figures.bars(
                        f"normalised-{slug(role)}",
                        f"Normalised score of {role}",
                        "score",
                        by_population(normalised, role),
                        {population: scaled(values) for population, values in said.items()},
                        "0 is the worst and 1 the best of the methods at each population.",
                    )
                )
        return section

    def scoring(self) -> str:
        if self.alone:
            return "Task reward per agent and episode, without shaping."
        best = self.yardstick
        whom = f"the agents of {label(best)}" if base(best) == YARDSTICK else "scripted players"
        teams = (
            "Both teams are averaged, as they are the same." if self.study.game.symmetric else ""
        )
        return (
            f"Sum of a team's task rewards per episode, without shaping, against {whom} of the "
            f"same population in all other roles. {teams}"
        )

    def reference(self) -> Section | None:
        table = self.table(REFERENCE)
        if not table:
            return None
        text = [
            "The same agents against scripted players, which do not change from one version of "
            "epcx to the next: these numbers can be compared between runs and papers."
        ]
        grids = [
            score_grid(
                f"reference-{slug(role)}", f"Reward of {role}", by_population(table, role), role
            )
            for role in roles_of(table)
        ]
        return Section("reference", "Against fixed players", text, grids)

    def statistics(self) -> Section | None:
        section = Section("statistics", "What they do", [])
        for statistic, words in STATISTICS.items():
            if self.study.game.covers and statistic != "coverage":
                continue  # food that stays is not eaten
            table = self.table(SCORE, statistic)
            published = paper.scores(self.study.name, statistic) if self.alone else {}
            for role in roles_of(table):
                groups = by_population(table, role)
                if len({cell.mean for cells in groups.values() for cell in cells.values()}) < 2:
                    continue  # such as the survival of those whom nobody hunts
                name, title = f"{statistic}-{slug(role)}", f"{words.capitalize()}: {role}"
                section.grids.append(
                    score_grid(name, title, groups, role, published, statistic in GOOD)
                )
                said = {p: v for (p, who), v in published.items() if who == role and p in groups}
                section.charts.append(figures.bars(name, title, "", groups, said, ""))
        if not section.charts:
            return None
        if not self.alone:
            section.text.append("In the games of the scores.")
        return section

    # How sure

    def over_trials(self) -> Section | None:
        scores = scores_of(normalise(self.table(SCORE), self.study.methods))
        if len(scores) < 2 or min(len(x) for x in scores.values()) < 2:
            return None
        trials, tasks = next(iter(scores.values())).shape
        text = [
            f"Normalised scores over {trials} trainings and {tasks} tasks (a population and a role "
            "each) that all methods share. Trainings are drawn again within every task (stratified "
            f"bootstrap, {statistics.RESAMPLES:,} times)."
        ]
        section = Section("certainty", "How sure is it", text)
        rows: list[list[str | Entry]] = []
        file = []
        measures = {"mean": statistics.mean, "IQM": statistics.interquartile_mean}
        best = self.yardstick if self.yardstick in scores else self.study.methods[-1]
        found: dict[str, dict[str, tuple[float, tuple[float, float]]]] = {}
        for method, values in scores.items():
            row: list[str | Entry] = [label(method)]
            saved: dict[str, Any] = {"method": method, "trials": trials, "tasks": tasks}
            for name, measure in measures.items():
                value, ends = float(measure(values)), statistics.interval(measure, values)
                found.setdefault(name, {})[method] = value, ends
                row.append(Entry(f"{value:.2f}", (f"[{ends[0]:.2f}, {ends[1]:.2f}]",)))
                saved |= {name: value, f"{name}_low": ends[0], f"{name}_high": ends[1]}
            if method == best:
                row.append(Entry(NOTHING))
            else:
                better = statistics.probability_of_improvement
                value = float(better(scores[best], values))
                ends = statistics.interval(better, scores[best], values)
                row.append(Entry(f"{value:.2f}", (f"[{ends[0]:.2f}, {ends[1]:.2f}]",)))
                saved |= {"better": value, "better_low": ends[0], "better_high": ends[1]}
            rows.append(row)
            file.append(saved)
        caption = f"IQM: interquartile mean. Last: how likely {label(best)} beats the method."
        header = ["method", *measures, f"P({label(best)} better)"]
        section.grids.append(Grid("certainty", caption, header, rows, file))
        section.charts.append(
            figures.intervals(
                "iqm",
                "Interquartile mean",
                "normalised score",
                found["IQM"],
                "With 95% intervals over trainings.",
            )
        )
        thresholds = np.linspace(0, 1, 101)
        shares = {m: statistics.performance_profile(x, thresholds) for m, x in scores.items()}
        section.charts.append(
            figures.profiles(
                "profiles",
                "Performance profiles",
                thresholds,
                shares,
                "Share of trainings that score more than τ: higher is better.",
            )
        )
        return section

    # Everybody against everybody

    def crossplay(self) -> Section | None:
        if self.alone:
            return None
        population = self.study.populations[-1]
        section = Section(
            "crossplay",
            "Cross-play",
            [
                f"Everybody against everybody at {population}: team sums of task reward per "
                "episode. A row plays the role that is measured, a column all others."
            ],
        )
        for role in self.study.game.roles:
            mine = [r for r in self.results if r.purpose == CROSSPLAY and r.role == role.name]
            names = list(dict.fromkeys(r.method for r in mine))
            cells = {
                against: tabulate((r for r in mine if r.against == against), CROSSPLAY)[
                    population, role.name
                ]
                for against in names
            }
            published = paper.crossplay(self.study.name, population, role.name)
            mean = np.array([[cells[column][row].mean for column in names] for row in names])
            caption = f"Reward of {role.name}, by who plays them and against whom."
            others = " and ".join(r.name for r in self.study.game.roles if r != role)
            name = f"crossplay-{role.name}"
            section.charts.append(
                figures.heat_map(
                    name,
                    f"Reward of {role.name}",
                    names,
                    names,
                    mean,
                    (f"{role.name} by", f"{others} by"),
                    caption,
                )
            )
            rows: list[list[str | Entry]] = [
                [
                    label(row),
                    *(entry(cells[c][row], published.get(row, {}).get(c)) for c in names),
                ]
                for row in names
            ]
            count = dict(zip(self.study.game.roles, counts_of(population), strict=True))[role]
            file = [
                {
                    "population": population,
                    "role": role.name,
                    "method": row,
                    "against": column,
                    **file_cell(cells[column][row]),
                    "mean_per_agent": cells[column][row].mean / count,
                    "paper": published.get(row, {}).get(column),
                }
                for row in names
                for column in names
            ]
            header = [f"{role.name} \\ {others}", *(label(c) for c in names)]
            section.grids.append(Grid(name, caption, header, rows, file))
        return section

    # Learning

    def learning_curves(self) -> Section:
        text = [
            "Task reward in training, of the matches that became the agents above, smoothed over "
            f"{SMOOTH} log lines. A curriculum's stage starts where the stages before it ended."
        ]
        if not self.alone:
            text.append(
                "Both sides learn, so that a curve may fall while everybody gets better; scores "
                "against fixed opponents tell more."
            )
        section = Section("curves", "Learning curves", text)
        file = []
        for population, methods in self.study.trials.items():
            for role in self.study.game.roles:
                lines: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
                for method, trials in methods.items():
                    for number, trial in enumerate(trials):
                        match = trial.origin(role.name)
                        rows = [
                            row
                            for row in trial.run.metrics()
                            if (row["population"], row["match"]) == (population, match)
                        ]
                        x = np.array([row["episodes"] for row in rows], float)
                        y = [row.get(f"reward/{role.name}") for row in rows]
                        values = np.array([np.nan if v is None else v for v in y], float)
                        lines.setdefault(method, []).append(smooth(x, values))
                        file += [
                            {
                                "population": population,
                                "role": role.name,
                                "method": method,
                                "trial": number,
                                "episodes": row["episodes"],
                                "reward": row.get(f"reward/{role.name}"),
                            }
                            for row in rows
                        ]
                section.charts.append(
                    figures.curves(
                        f"curves-{population}-{role.name}",
                        f"{role.name} at {population}",
                        "reward in training",
                        lines,
                        "Thin lines are trainings, thick ones their mean."
                        if self.trials > 1
                        else "",
                    )
                )
        section.grids.append(Grid("learning-curves", "", [], [], file))
        return section

    def second_stage(self) -> Section | None:
        """Stability and convergence: scores through the second stage against a fixed opponent."""
        results = [result for result in self.results if result.purpose == CURVE]
        if not results:
            return None
        population = results[0].population
        whom = "" if self.alone else f" against the final {label(self.yardstick)}"
        section = Section(
            "second-stage",
            "Through the second stage",
            [
                f"What policies score{whom} at {population} agents on their way: those of the "
                "curricula, that were grown from the first stage, and those from scratch."
            ],
        )
        moments = sorted({result.trained for result in results if result.trained is not None})
        tables = {
            moment: tabulate(
                (r for r in results if r.trained == moment), CURVE, merged=self.study.merged
            )
            for moment in moments
        }
        file = []
        for role in roles_of({task: {} for table in tables.values() for task in table}):
            lines: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
            for method in self.study.methods:
                points = [
                    (moment, table[population, role][method])
                    for moment, table in tables.items()
                    if method in table.get((population, role), {})
                ]
                trials = min((len(cell.values) for _, cell in points), default=0)
                x = np.array([moment for moment, _ in points], float)
                for trial in range(trials):
                    y = np.array([cell.values[trial] for _, cell in points])
                    lines.setdefault(method, []).append((x, y))
                    file += [
                        {"role": role, "method": method, "trial": trial, "episodes": a, "reward": b}
                        for a, b in zip(x.tolist(), y.tolist(), strict=True)
                    ]
            growing = {method: lines[method] for method in lines if base(method) in GROWING}
            section.charts.append(
                figures.curves(
                    f"convergence-{slug(role)}",
                    f"Convergence: {role}",
                    "reward",
                    lines,
                    "Every method, with as many episodes.",
                )
            )
            if any(len(trials) > 1 for trials in growing.values()):
                section.charts.append(
                    figures.curves(
                        f"stability-{slug(role)}",
                        f"Stability: {role}",
                        "reward",
                        growing,
                        "Mean and one standard deviation over trainings.",
                        band=True,
                    )
                )
        section.grids.append(Grid("second-stage", "", [], [], file))
        return section

    def generalisation(self) -> Section | None:
        table = self.table(GENERALISATION)
        if len(next(iter(table.values()), {})) < 2:
            return None
        population = next(iter(table))[0]
        last = self.study.populations[-1]
        text = [
            f"Agents of {last}, cloned to {population} and not trained any further. Networks that "
            "are made for one population cannot take part."
        ]
        section = Section("generalisation", "Twice as many", text)
        for role in roles_of(table):
            name = f"generalisation-{slug(role)}"
            groups = by_population(table, role)
            section.grids.append(score_grid(name, f"Reward of {role}", groups, role))
            section.charts.append(
                figures.bars(
                    name,
                    f"Normalised score: {role}",
                    "score",
                    by_population(normalise(table, self.study.methods), role),
                    {},
                    "0 is the worst and 1 the best of the methods.",
                )
            )
        return section

    def evolution(self) -> Section | None:
        text = [
            "All agent sets of the stages, the fittest on top, with their fitness. Filled ones "
            "were promoted. Lines lead to the sets that were joined, thick where a set was joined "
            "with itself. Orange: the best set of the last stage, and its ancestors."
        ]
        section = Section("lineage", "Who descends from whom", text)
        for run, training in zip(self.study.runs, self.study.trainings, strict=True):
            if training.method != YARDSTICK:
                continue
            lineage = Lineage.from_json(run.lineage())
            for role in self.study.game.roles:
                section.charts.append(
                    figures.family(
                        f"lineage-{slug(run.path.name)}-{role.name}",
                        f"{role.name}, seed {training.seed}",
                        lineage,
                        role.name,
                        f"Lineage of {role.name} in {run.path.name}",
                    )
                )
        return section if section.charts else None


def roles_of(table: Table) -> list[str]:
    return list(dict.fromkeys(role for _, role in table))


def by_population(table: Table, role: str) -> dict[str, dict[str, Cell]]:
    return {population: cells for (population, who), cells in table.items() if who == role}


def scaled(values: dict[str, float]) -> dict[str, float]:
    low, high = min(values.values()), max(values.values())
    return {m: (x - low) / (high - low) if high > low else 0.0 for m, x in values.items()}


def counts_of(population: str) -> list[int]:
    return [int(count) for count in population.split("-")]


def slug(text: str) -> str:
    """For the name of a file."""
    return "".join(c if c.isalnum() else "-" for c in text)


def smooth(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    width = min(SMOOTH, len(y))
    if width < 2:
        return x, y
    weights = np.ones(width) / width
    return np.convolve(x, weights, "valid"), np.convolve(y, weights, "valid")


def minutes(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    whole, rest = divmod(round(seconds), 60)
    return f"{whole} min {rest:02} s"
