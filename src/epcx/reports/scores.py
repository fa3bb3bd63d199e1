"""The sections of a report that compare the scores of methods."""

from epcx.evaluation.players import FIXED_PLAYERS
from epcx.evaluation.results import CROSSPLAY, GENERALISATION, REFERENCE, SCORE, tabulate
from epcx.games import Game
from epcx.reports import figures, paper
from epcx.reports.chart import label
from epcx.reports.comparison import bar_charts, score_table
from epcx.reports.normalised import add_normalised
from epcx.reports.report_data import ReportData, Section, by_population, roles_of, slug
from epcx.reports.tables import (
    CsvRow,
    ReportTable,
    TableCell,
    csv_cell,
    explain_cells,
    table_cell,
)
from epcx.reports.words import budget_note, join, total_budget_note

HIGHER_IS_BETTER = ("coverage", "ate", "survival")  # statistics of which tables mark the best


def scores(data: ReportData) -> Section:
    """Raw rewards of every method against the reference opponents, at every population."""
    table = data.table(SCORE)
    section = Section("scores", "Rewards", score_texts(data), score_tables(data))
    for role in roles_of(table):
        section.charts += bar_charts(
            data,
            f"scores-{slug(role)}",
            f"Reward of {role}",
            "reward per episode",
            by_population(table, role),
            data.published(role),
        )
    return section


def score_tables(data: ReportData) -> list[ReportTable]:
    table = data.table(SCORE)
    return [
        score_table(
            data,
            f"scores-{slug(role)}",
            f"Reward of {role}",
            by_population(table, role),
            role,
            data.published(role),
        )
        for role in roles_of(table)
    ]


def score_texts(data: ReportData) -> list[str]:
    """What is measured, and what methods are that the paper does not have."""
    return [x for x in (score_note(data), total_budget_note(data.study.methods)) if x]


def score_note(data: ReportData) -> str:
    """What a score is."""
    if not data.has_opponents:
        return "Task reward per agent and episode, without shaping."
    parts = [
        "Sum of a team's task rewards per episode, without shaping, against "
        f"{data.opponents()} of the same population in all other roles."
    ]
    shared = [role.name for role in data.study.game.roles if role.shares_reward]
    if shared:
        parts.append(f"All agents of {' and '.join(shared)} share one reward, which counts once.")
    if data.study.merged:
        parts.append("Scores are averaged over both teams, which are symmetric.")
    return " ".join(parts)


def against_fixed_players(data: ReportData) -> Section | None:
    """Every method against the fixed players of the game."""
    table = data.table(REFERENCE)
    if not table:
        return None
    text = (
        f"The same agents against {data.study.fixed} players. These do not change between versions "
        "of epcx, so that the numbers can be compared across reports."
    )
    section = Section("fixed-players", "Against fixed players", [text])
    for role in roles_of(table):
        name, groups = f"fixed-players-{slug(role)}", by_population(table, role)
        section.tables.append(score_table(data, name, f"Reward of {role}", groups, role))
    return section


def statistics(data: ReportData) -> Section | None:
    """The game's own statistics, in the episodes of the scores."""
    section = Section("statistics", "Statistics")
    for statistic, phrase in statistic_phrases(data.study.game).items():
        table = data.table(SCORE, statistic)
        for role in roles_of(table):
            groups = by_population(table, role)
            if len({cell.mean for cells in groups.values() for cell in cells.values()}) < 2:
                continue  # constant, such as the survival of a role that cannot die
            name, title = f"{statistic}-{slug(role)}", f"{phrase.capitalize()}: {role}"
            published = {} if data.has_opponents else data.published(role, statistic)
            highlight = statistic in HIGHER_IS_BETTER
            section.tables.append(
                score_table(data, name, title, groups, role, published, highlight)
            )
            section.charts += bar_charts(data, name, title, "", groups, published)
    if not section.charts:
        return None
    if data.has_opponents:
        section.text.append("From the same episodes as the scores.")
    return section


def statistic_phrases(game: type[Game]) -> dict[str, str]:
    """What a report shows beside rewards: final statistics if the game has any, else the sums."""
    if game.final_statistics:
        return dict(game.final_statistics)
    phrases = dict(game.statistics)
    if phrases.pop("died", None) is not None:
        phrases["survival"] = "share alive at the end"
    return phrases


def crossplay(data: ReportData) -> Section | None:
    """Every method against every other, at the largest population."""
    study = data.study
    if not data.has_opponents:
        return None
    population = study.populations[-1]
    game = study.at(population)
    text = (
        f"Every method against every other at {population}: task reward of the team per episode. "
        "The method of the row plays the role that is measured, that of the column all others."
    )
    section = Section("crossplay", "Cross-play", [text])
    for role in game.members:
        results = [r for r in data.results if r.purpose == CROSSPLAY and r.role == role]
        names = list(dict.fromkeys(r.method for r in results))
        columns = [
            tabulate((r for r in results if r.against == against), CROSSPLAY)[population, role]
            for against in names
        ]
        published = paper.crossplay(study.name, population, role)
        others = " and ".join(other for other in game.members if other != role)
        caption = f"Reward of {role} by method (rows) and opponents (columns)."
        chart = figures.heat_map(
            f"crossplay-{role}",
            f"Reward of {role}",
            names,
            names,
            [[column[name] for column in columns] for name in names],
            (f"{role} by", f"{others} by"),
            caption,
        )
        chart.table = chart.name
        section.charts.append(chart)
        rows: list[list[str | TableCell]] = []
        csv_rows: list[CsvRow] = []
        for name in names:
            from_paper = published.get(name, {})
            pairs = list(zip(names, columns, strict=True))
            fixed = name in FIXED_PLAYERS
            rows.append(
                [
                    label(name),
                    *(table_cell(c[name], from_paper.get(o), fixed=fixed) for o, c in pairs),
                ]
            )
            csv_rows += [
                {
                    "population": population,
                    "role": role,
                    "method": name,
                    "against": against,
                    **csv_cell(column[name]),
                    "mean_per_agent": game.per_member(column[name].mean, role),
                    "paper": from_paper.get(against),
                }
                for against, column in pairs
            ]
        header = [f"{role} \\ {others}", *map(label, names)]
        cells = (cell for column in columns for cell in column.values())
        notes = [explain_cells(cells, data.episodes), budget_note(study, [population], names)]
        section.tables.append(
            ReportTable(f"crossplay-{role}", caption, header, rows, csv_rows, notes=notes)
        )
    return section


def generalisation(data: ReportData) -> Section | None:
    """The agents of the largest population, cloned to twice as many."""
    table = data.table(GENERALISATION)
    if not table:
        return None
    population, last = next(iter(table))[0], data.study.populations[-1]
    text = (
        f"Agents trained at {last}, cloned to {population} without further training. Only methods "
        "whose networks take any population are compared."
    )
    if data.has_opponents:
        methods = [method for method in data.study.methods if method in next(iter(table.values()))]
        text += (
            " As the fitness is, the reward of a role is an average over games against the other "
            f"roles of all these methods ({join(map(label, methods))}), trial by trial; "
            "results.json has every opponent by itself."
        )
    section = Section("generalisation", "Generalisation to a doubled population", [text])
    for role in roles_of(table):
        groups, name = by_population(table, role), f"generalisation-{slug(role)}"
        title = f"Reward of {role}"
        section.tables.append(score_table(data, name, title, groups, role, purpose=GENERALISATION))
        section.charts += bar_charts(data, name, title, "reward per episode", groups, {})
        add_normalised(section, data, table, role, "generalisation-normalised")
    return section
