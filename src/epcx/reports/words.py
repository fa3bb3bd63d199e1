"""Sentences of a report: who is ahead, how many trainings there are, and what they took."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from epcx.evaluation.players import FIXED_PLAYERS
from epcx.evaluation.results import SCORE, Cell
from epcx.evaluation.statistics import MIN_TRAININGS
from epcx.evaluation.study import Study
from epcx.reports.chart import label
from epcx.reports.report_data import ReportData

SCRIPTED = "scripted"
Value = TypeVar("Value")


def headlines(data: ReportData) -> list[str]:
    """A sentence for each setting: which of its methods has the highest reward most often."""
    return [headline(data, settings, methods) for settings, methods in data.study.groups.items()]


def headline(data: ReportData, settings: str, methods: Sequence[str]) -> str:
    """Only methods of one setting are compared, where several have results."""
    study = data.study
    names = {method: label(study.short_names[method]) for method in methods}
    tables = [cells for cells in data.table(SCORE).values() if len(among(cells, methods)) > 1]
    if not tables and len(study.groups) > 1:
        return f"With {settings}, {join(names.values())} is not compared with another method"
    if not tables:
        return f"{join(names.values())} on {study.game.name}, with {settings}"
    tasks = [{m: cell.mean for m, cell in among(cells, methods).items()} for cells in tables]
    wins = {m: sum(means.get(m) == max(means.values()) for means in tasks) for m in methods}
    most = max(wins.values())
    best = [names[method] for method in methods if wins[method] == most]
    sizes = {len(means) for means in tasks}
    of_all = f"of {'up to ' if len(sizes) > 1 else ''}{max(sizes)} methods"
    verb, each = ("have", " each") if len(best) > 1 else ("has", "")
    return (
        f"With {settings}, {join(best)} {verb} the highest reward {of_all} in {most} of "
        f"{count(len(tasks), 'comparison')}{each} ({trainings_phrase(tables, names)})"
        + scripted_phrase(tables, tasks)
    )


def scripted_phrase(
    tables: Sequence[Mapping[str, Cell]], tasks: Sequence[Mapping[str, float]]
) -> str:
    """How often scripted players, which are not among the methods, get more than the best one."""
    if not all(SCRIPTED in cells for cells in tables):
        return ""
    pairs = zip(tables, tasks, strict=True)
    ahead = sum(cells[SCRIPTED].mean > max(means.values()) for cells, means in pairs)
    return f"; the scripted players get more in {f'{ahead} of {len(tasks)}' if ahead else 'none'}"


def trainings_phrase(tables: Sequence[Mapping[str, Cell]], names: Mapping[str, str]) -> str:
    """Such as "one training each", or "3 trainings of EPC, one of each other method"."""
    found: dict[str, list[str]] = {}
    for method, name in names.items():
        numbers = {len(cells[method].values) for cells in tables if method in cells}
        if numbers:
            low, high = min(numbers), max(numbers)
            shown = "one" if high == 1 else str(high) if low == high else f"{low} to {high}"
            found.setdefault(shown, []).append(name)
    by_size = sorted(found.items(), key=lambda item: len(item[1]))
    if len(by_size) == 1:
        ((number, _),) = by_size
        return f"{number} {plural('training', number)} each"
    parts = []
    for place, (number, who) in enumerate(by_size):
        noun = "" if place else f" {plural('training', number)}"
        others = place == len(by_size) - 1 and len(who) > 1
        parts.append(f"{number}{noun} of {'each other method' if others else join(who)}")
    return ", ".join(parts)


def uncertainty_note(data: ReportData) -> str:
    """What the report can say about uncertainty, with the trainings that there are."""
    measured = (
        f"Numbers after ± are standard errors over {data.episodes:,} evaluation episodes of one "
        "training: how well it was measured, not how much trainings differ."
    )
    if data.trials == 1:
        return (
            "There is one training run of each method: how much trainings differ is unknown, and "
            f"an order of methods may be chance. {measured}"
        )
    start = f"Up to {data.trials} independent training runs of each method. "
    single = f" {measured}" * (data.fewest_trials == 1)
    few = (
        f"Where there are fewer than {MIN_TRAININGS}, all of them are shown, and no interval: it "
        "would be too narrow, or so wide that it says nothing."
    )
    if data.trials < MIN_TRAININGS:
        return f"{start}{few}{single}"
    enough = "Ranges in brackets are 95% intervals over training runs."
    return f"{start}{enough}{f' {few}' * (data.fewest_trials < MIN_TRAININGS)}{single}"


def budget_note(study: Study, populations: Sequence[str], methods: Iterable[str]) -> str:
    """How many episodes the matches of a training have taken, beside those along one lineage."""
    ratios: dict[str, dict[str, float]] = {}
    lineages: dict[str, dict[str, list[str]]] = {}
    for method in methods:
        for population in populations:
            episodes = study.episodes(method, population)
            if episodes is not None:
                lineage, total = episodes
                ratios.setdefault(method, {})[population] = total / lineage
                by_length = lineages.setdefault(population, {})
                by_length.setdefault(f"{lineage:,}", []).append(label(method))
    if not ratios:
        return ""
    shown: dict[str, list[str]] = {}
    for method, by_population in ratios.items():
        shown.setdefault(ratio_phrase(by_population), []).append(label(method))
    start = "Training episodes in all matches, in multiples of those along one lineage: "
    note = start + "; ".join(name_groups(shown)) + "."
    different = [
        f"at {population} " + ", ".join(name_groups(numbers))
        for population, numbers in lineages.items()
        if len(numbers) > 1
    ]
    if different:
        note += f" Episodes along a lineage differ: {'; '.join(different)}."
    return note


def ratio_phrase(ratios: Mapping[str, float]) -> str:
    """Such as "3.0 at 3, 3.9 at 6", or "1.0" if it is the same everywhere."""
    shown = {population: f"{ratio:.1f}" for population, ratio in ratios.items()}
    if len(set(shown.values())) == 1:
        return next(iter(shown.values()))
    return ", ".join(f"{ratio} at {population}" for population, ratio in shown.items())


def name_groups(groups: Mapping[str, Sequence[str]]) -> list[str]:
    """ "names phrase" for each phrase; those that most have come last, as "all others"."""
    by_size = sorted(groups.items(), key=lambda item: len(item[1]))
    if len(by_size) == 1:
        phrase, names = by_size[0]
        return [f"{'all methods' if len(names) > 1 else names[0]} {phrase}"]
    parts = [f"{join(names)} {phrase}" for phrase, names in by_size[:-1]]
    phrase, names = by_size[-1]
    return [*parts, f"{'all others' if len(names) > 1 else names[0]} {phrase}"]


def total_budget_note(methods: Iterable[str]) -> str:
    """What a control with EPC's total budget is, if there is one."""
    found = [label(method) for method in methods if "total budget" in method]
    if not found:
        return ""
    return (
        f"{join(found)}: as many matches from scratch as EPC's episodes in all its matches amount "
        "to, of which the fittest is evaluated."
    )


def selection_note(study: Study, population: str, methods: Iterable[str]) -> str:
    """Which curves are those of the best of several matches, chosen afterwards."""
    selected = [
        label(method)
        for method in methods
        for lineage, total in [study.episodes(method, population) or (1, 1)]
        if total > lineage
    ]
    if not selected:
        return ""
    verb, whose = ("follow", "their") if len(selected) > 1 else ("follows", "its")
    return (
        f"{join(selected)} {verb} the sets that won in the end, selected afterwards among those of "
        f"{whose} matches: the curve of the best of several, beside single trainings."
    )


def dots_caption(tables: Iterable[Mapping[str, Cell]], mean: str = "Bars") -> str:
    """What dots and whiskers of a chart are, and how many trainings the methods have."""
    cells = [(method, cell) for some in tables for method, cell in some.items()]
    trained = [(label(method), cell) for method, cell in cells if method not in FIXED_PLAYERS]
    fixed = [cell for method, cell in cells if method in FIXED_PLAYERS]
    parts = []
    if any(len(cell.values) > 1 and not cell.interval for _, cell in trained):
        parts.append(f"{mean}: means. Dots: trainings.")
    if any(cell.interval for _, cell in trained):
        parts.append("Whiskers: 95% intervals over trainings.")
    if any(len(cell.values) > 1 for cell in fixed):
        parts.append("Fixed players met every training of their opponents.")
    return " ".join([*parts, count_trainings((name, len(cell.values)) for name, cell in trained)])


def count_trainings(numbers: Iterable[tuple[str, int]]) -> str:
    """Such as "Trainings: EPC 3; all others 1."; names may occur several times."""
    found: dict[str, set[int]] = {}
    for name, number in numbers:
        found.setdefault(name, set()).add(number)
    shown: dict[str, list[str]] = {}
    for name, some in found.items():
        low, high = min(some), max(some)
        shown.setdefault(str(high) if low == high else f"{low} to {high}", []).append(name)
    if len(shown) > 1:
        return f"Trainings: {'; '.join(name_groups(shown))}."
    (same,) = shown
    return f"{same} {plural('training', same)} of each method."


def among(found: Mapping[str, Value], methods: Iterable[str]) -> dict[str, Value]:
    """What was found of these methods, in their order."""
    return {method: found[method] for method in methods if method in found}


def join(names: Iterable[str]) -> str:
    """Such as "A, B and C"."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def plural(noun: str, number: str) -> str:
    return noun if number in ("1", "one") else f"{noun}s"


def count(number: int, noun: str) -> str:
    return f"{number} {plural(noun, str(number))}"
