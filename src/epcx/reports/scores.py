"""The sections of a report that score methods: against EPC, fixed players and each other."""

from collections.abc import Mapping

import numpy as np

from epcx.evaluation.results import (
    CROSSPLAY,
    GENERALISATION,
    REFERENCE,
    SCORE,
    Cell,
    Table,
    normalise,
    tabulate,
)
from epcx.reports import figures, paper
from epcx.reports.figures import Chart, label
from epcx.reports.findings import Findings, Section, by_population, roles_of, slug
from epcx.reports.grids import Entry, Grid, entry, file_cell, score_grid

STATISTICS = {  # what there is beside rewards, and what it is called
    "coverage": "share of the food occupied at the end",
    "ate": "pellets eaten per episode",
    "survival": "share alive at the end",
    "killed": "parts in kills per episode",
    "touched": "contacts per episode",
}
GOOD = ("coverage", "ate", "survival")  # of which more is better


def scores(findings: Findings) -> Section:
    """Everybody against the yardstick, at every population."""
    table, published = findings.table(SCORE), findings.published()
    section = Section("scores", "Scores", [scoring(findings)], score_grids(findings))
    for role in roles_of(table):
        groups, name = by_population(table, role), f"scores-{slug(role)}"
        said = {p: v for (p, who), v in published.items() if who == role and p in groups}
        title, unit = f"Reward of {role}", "reward per episode"
        section.charts.append(figures.bars(name, title, unit, groups, findings.colours, said))
        section.charts += normalised_chart(findings, table, role, "normalised", said)
    return section


def score_grids(findings: Findings) -> list[Grid]:
    table, published = findings.table(SCORE), findings.published()
    return [
        score_grid(
            f"scores-{slug(role)}",
            f"Reward of {role}",
            by_population(table, role),
            role,
            published,
        )
        for role in roles_of(table)
    ]


def scoring(findings: Findings) -> str:
    if findings.alone:
        return "Task reward per agent and episode, without shaping."
    parts = [
        "Sum of a team's task rewards per episode, without shaping, against "
        f"{findings.yardsticks()} of the same population in all other roles."
    ]
    shared = [role.name for role in findings.study.game.roles if role.shares_reward]
    if shared:
        parts.append(f"Every {shared[0]} gets the reward of all, which counts once.")
    if findings.study.merged:
        parts.append("Both teams are averaged, as they are the same.")
    return " ".join(parts)


def normalised_chart(
    findings: Findings,
    table: Table,
    role: str,
    name: str,
    said: Mapping[str, Mapping[str, float]] | None = None,
) -> list[Chart]:
    """Scores from 0 to 1, at populations where there are methods to be compared."""
    contested = {task: cells for task, cells in table.items() if len(trained(findings, cells)) > 1}
    groups = by_population(normalise(contested, findings.study.methods), role)
    if not groups:
        return []
    published = {
        population: scaled({m: v for m, v in numbers.items() if m in groups[population]})
        for population, numbers in (said or {}).items()
        if population in groups
    }
    title = f"Normalised score of {role}"
    caption = "0 is the worst and 1 the best of the methods at each population."
    chart = figures.bars(
        f"{name}-{slug(role)}", title, "score", groups, findings.colours, published, caption
    )
    return [chart]


def trained(findings: Findings, cells: Mapping[str, Cell]) -> dict[str, Cell]:
    """Without the fixed players."""
    return {method: cell for method, cell in cells.items() if method in findings.study.methods}


def scaled(values: dict[str, float]) -> dict[str, float]:
    low, high = min(values.values(), default=0.0), max(values.values(), default=0.0)
    return {m: (x - low) / (high - low) if high > low else 0.0 for m, x in values.items()}


def reference(findings: Findings) -> Section | None:
    """Everybody against the scripted players."""
    table = findings.table(REFERENCE)
    if not table:
        return None
    text = (
        "The same agents against scripted players, which do not change from one version of epcx to "
        "the next: these numbers can be compared between runs and papers."
    )
    section = Section("reference", "Against fixed players", [text])
    for role in roles_of(table):
        groups = by_population(table, role)
        section.grids.append(
            score_grid(f"reference-{slug(role)}", f"Reward of {role}", groups, role)
        )
    return section


def statistics(findings: Findings) -> Section | None:
    """What there is to count beside rewards."""
    section = Section("statistics", "What they do")
    for statistic, words in STATISTICS.items():
        if findings.study.game.covers and statistic != "coverage":
            continue  # food that stays is not eaten
        table = findings.table(SCORE, statistic)
        published = findings.published(statistic) if findings.alone else {}
        for role in roles_of(table):
            groups = by_population(table, role)
            if len({cell.mean for cells in groups.values() for cell in cells.values()}) < 2:
                continue  # such as the survival of those whom nobody hunts
            name, title = f"{statistic}-{slug(role)}", f"{words.capitalize()}: {role}"
            good = statistic in GOOD
            section.grids.append(score_grid(name, title, groups, role, published, good))
            said = {p: v for (p, who), v in published.items() if who == role and p in groups}
            section.charts.append(figures.bars(name, title, "", groups, findings.colours, said))
    if not section.charts:
        return None
    if not findings.alone:
        section.text.append("In the games of the scores.")
    return section


def crossplay(findings: Findings) -> Section | None:
    """Everybody against everybody, at the largest population."""
    study = findings.study
    if findings.alone:
        return None
    population = study.populations[-1]
    game = study.at(population)
    text = (
        f"Everybody against everybody at {population}: task reward of the team per episode. A row "
        "plays the role that is measured, a column all others."
    )
    section = Section("crossplay", "Cross-play", [text])
    for role in game.members:
        mine = [r for r in findings.results if r.purpose == CROSSPLAY and r.role == role]
        names = list(dict.fromkeys(r.method for r in mine))
        columns = [
            tabulate((r for r in mine if r.against == against), CROSSPLAY)[population, role]
            for against in names
        ]
        published = paper.crossplay(study.name, population, role)
        others = " and ".join(other for other in game.members if other != role)
        caption = f"Reward of {role}, by who plays them and against whom."
        section.charts.append(
            figures.heat_map(
                f"crossplay-{role}",
                f"Reward of {role}",
                names,
                names,
                np.array([[column[name].mean for column in columns] for name in names]),
                (f"{role} by", f"{others} by"),
                caption,
            )
        )
        rows: list[list[str | Entry]] = []
        file = []
        for name in names:
            said = published.get(name, {})
            pairs = list(zip(names, columns, strict=True))
            cells = [entry(column[name], said.get(against)) for against, column in pairs]
            rows.append([label(name), *cells])
            file += [
                {
                    "population": population,
                    "role": role,
                    "method": name,
                    "against": against,
                    **file_cell(column[name]),
                    "mean_per_agent": game.per_member(column[name].mean, role),
                    "paper": said.get(against),
                }
                for against, column in pairs
            ]
        header = [f"{role} \\ {others}", *(label(name) for name in names)]
        section.grids.append(Grid(f"crossplay-{role}", caption, header, rows, file))
    return section


def generalisation(findings: Findings) -> Section | None:
    """Clones of the agents of the largest population."""
    table = findings.table(GENERALISATION)
    if not table:
        return None
    population, last = next(iter(table))[0], findings.study.populations[-1]
    text = (
        f"Agents of {last}, cloned to {population} and not trained any further. Networks that are "
        "made for one population cannot take part."
    )
    section = Section("generalisation", "Twice as many", [text])
    for role in roles_of(table):
        groups, name = by_population(table, role), f"generalisation-{slug(role)}"
        section.grids.append(score_grid(name, f"Reward of {role}", groups, role))
        section.charts += normalised_chart(findings, table, role, "generalisation")
    return section
