"""The sections of a report with pictures of the game and recorded episodes."""

import io

import jax

from epcx.errors import InputError, printable
from epcx.evaluation.results import SCORE
from epcx.evaluation.study import MAIN_METHOD, Study
from epcx.evaluation.variants import base
from epcx.reports import paper
from epcx.reports.canvas import Canvas
from epcx.reports.chart import label
from epcx.reports.drawing import draw_frame, side_of
from epcx.reports.recording import record, record_start
from epcx.reports.replay import Replay
from epcx.reports.report_data import Picture, ReplayPair, ReportData, Section
from epcx.reports.words import among, join
from epcx.teams import RunPlayers

PICTURE_SIDE = 480


def worlds(study: Study) -> Section | None:
    """How the game begins at every population; none if it has no 2-D scene."""
    text = "An initial world at each population."
    if study.density == "constant":
        last = study.game.stages[-1]
        text += f" At more than {last} agents the world and the food in it grow with them."
    section = Section("worlds", "The game", [text])
    try:
        for population in study.populations:
            game = study.at(population)
            start = record_start(game, jax.random.key(0), population)
            section.pictures.append(
                Picture(f"world-{population}", describe_world(start), first_frame(start))
            )
    except InputError:
        return None
    return section


def describe_world(replay: Replay) -> str:
    """Such as "3-2: sheep (3), wolf (2), grass (3)"."""
    things = [(role.count, role.name) for role in replay.roles]
    things.append((replay.food.shape[1], replay.food_name))
    things.append((len(replay.obstacles), "obstacle"))
    return f"{replay.population}: " + ", ".join(f"{name} ({n})" for n, name in things if n)


def first_frame(replay: Replay) -> bytes:
    file = io.BytesIO()
    canvas = Canvas(replay, side_of(replay, PICTURE_SIDE))
    draw_frame(canvas, replay, 0.0).save(file, "PNG", optimize=True)
    return file.getvalue()


def replays(data: ReportData) -> Section:
    """Recorded episodes, or a sentence that says why there are none."""
    text = "Each pair starts from the same initial world. Press play, scrub, or step."
    try:
        return Section("replays", "Replays", [text], pairs=replay_pairs(data))
    except InputError as error:
        return Section("replays", "Replays", [f"There are no replays: {error}."])


def replay_pairs(data: ReportData) -> list[ReplayPair]:
    """At the largest population, the reference method with every other; a single one by itself.

    In games with opponents also a strong and a weak method of each setting against themselves.
    """
    study = data.study
    population = study.populations[-1]
    game, sources = study.at(population), study.all_players(population)
    methods, reference = list(study.trials[population]), study.reference(population)
    first, *others = game.members
    recorded: dict[str, Replay] = {}

    def episode(method: str, opponent: str) -> Replay:
        """`method` plays the first role, `opponent` all others."""
        title = f"{label(method)}{of_run(sources[method][0])}, {population} agents"
        if others:
            title = (
                f"{label(method)} {first}{of_run(sources[method][0])}, "
                f"{label(opponent)} {' and '.join(others)}{of_run(sources[opponent][0])}"
            )
        if title not in recorded:
            by_role = {first: method} | dict.fromkeys(others, opponent)
            players = {role: sources[name][0].player(game, role) for role, name in by_role.items()}
            recorded[title] = record(game, players, jax.random.key(0), title)
        return recorded[title]

    if len(methods) == 1:
        return [ReplayPair(label(methods[0]), (episode(methods[0], methods[0]),))]
    joined = "against" if others else "and"
    pairs = [
        ReplayPair(
            f"{label(reference)} {joined} {label(method)}",
            (episode(reference, method), episode(method, reference)),
        )
        for method in methods
        if method != reference
    ]
    if not others:
        return pairs
    for group in data.groups:
        chosen = self_players(data, [m for m in group.methods if m in methods])
        if chosen:
            title = f"Against themselves: {join(map(label, chosen))}"
            episodes = tuple(episode(method, method) for method in chosen)
            pairs.append(ReplayPair(title, episodes, frames=True))
    return pairs


def of_run(source: object) -> str:
    """The name of the run that players come from; nothing of fixed players."""
    if not isinstance(source, RunPlayers):
        return ""
    return f" of run {printable(source.run.path.resolve().name)}"


def self_players(data: ReportData, methods: list[str]) -> list[str]:
    """EPC, or else the method with most reward; and the baseline that the paper shows beside it,
    or else the one with least."""
    ranked = rank(data, methods)
    if not ranked:
        return []
    strong = next((m for m in methods if base(m) == MAIN_METHOD), ranked[0])
    weak = next((m for m in methods if base(m) == paper.BASELINE and m != strong), ranked[-1])
    return list(dict.fromkeys([strong, weak]))


def rank(data: ReportData, methods: list[str]) -> list[str]:
    """Methods at the largest population, by how many they surpass over all roles; best first."""
    population = data.study.populations[-1]
    surpassed = dict.fromkeys(methods, 0)
    for (place, _), cells in data.table(SCORE).items():
        if place == population:
            found = among(cells, methods)
            for method, cell in found.items():
                surpassed[method] += sum(cell.mean > other.mean for other in found.values())
    return sorted(methods, key=lambda method: -surpassed[method])
