"""The replay page in a real browser."""

import base64
import dataclasses
import io
import json
import re
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Locator, Page, expect

from epcx.reports import replay
from epcx.reports.replay import Replay, ReplayRole
from tests.reports import factories
from tests.reports.factories import OpenPage

STEPS = 12


def make_replay(**changes: Any) -> Replay:
    """Six sheep and four wolves on a random walk; one sheep dies and one eats at step 5."""
    base = factories.make_replay((6, 4), steps=STEPS)
    died = np.zeros_like(base.died)
    killed, ate = np.zeros_like(base.killed), np.zeros_like(base.ate)
    died[5, 0] = True
    killed[5, 6] = ate[5, 1] = 1
    food = np.repeat(base.food[:1], STEPS + 1, 0)
    food[5:, 0] = 0.5
    occupied = np.zeros_like(base.occupied)
    occupied[5, 0] = True
    events = {
        "alive": ~np.logical_or.accumulate(died, 0),
        "food": food,
        "reward": 5.0 * killed - 5.0 * died + 2.0 * ate,
        "ate": ate,
        "killed": killed,
        "died": died,
        "touched": killed,
        "occupied": occupied,
    }
    return dataclasses.replace(base, **(events | changes))


def food_collection() -> Replay:
    """Fixed food, half of it occupied; contacts, no deaths, no walls."""
    base = make_replay()
    nobody = np.zeros_like(base.died)
    return make_replay(
        game="food-collection",
        population="10",
        roles=(ReplayRole("collector", "#4f8fd9", 0.05, 10),),
        walls=False,
        obstacle_size=0.2,
        obstacles=np.array([[0.2, 0.3]]),
        position=2 * base.position,
        alive=~nobody,
        died=nobody,
        killed=nobody.astype(int),
        touched=nobody + 1,
        food=np.repeat(base.food[:1], STEPS + 1, 0),
        occupied=np.tile([True, True, False, False], (STEPS + 1, 1)),
    )


def press(page: Page | Locator, label: str) -> None:
    page.get_by_role("button", name=label, exact=True).click()


def step(page: Page | Locator) -> int:
    return int(page.locator(".er-step").inner_text())


def expect_step(page: Page | Locator, number: int) -> None:
    expect(page.locator(".er-step")).to_have_text(str(number))


def expect_other_step(page: Page | Locator, number: int) -> None:
    expect(page.locator(".er-step")).not_to_have_text(str(number))


def pixels(page: Page | Locator) -> str:
    return str(page.locator(".er-world").evaluate("canvas => canvas.toDataURL()"))


def expect_other_pixels(page: Page, before: str) -> None:
    other = "before => document.querySelector('.er-world').toDataURL() !== before"
    page.wait_for_function(other, arg=before)


def paused(open_page: OpenPage, content: Replay | None = None, **options: Any) -> Page:
    """At the first frame, once that is drawn."""
    page = open_page(content or make_replay(), reduced_motion="reduce", **options)
    expect_step(page, 0)
    return page


def test_page_plays_automatically_and_pauses(open_page: OpenPage) -> None:
    page = open_page(make_replay())
    before = pixels(page)
    expect(page.locator(".er-step")).to_have_text(re.compile("^([2-9]|1.)$"))
    assert pixels(page) != before
    press(page, "Pause")
    expect(page.get_by_role("button", name="Play", exact=True)).to_be_visible()
    stopped, picture = step(page), pixels(page)
    page.wait_for_timeout(400)
    assert (step(page), pixels(page)) == (stopped, picture)


def test_page_does_not_autoplay_with_reduced_motion(open_page: OpenPage) -> None:
    page = paused(open_page)
    page.wait_for_timeout(400)
    assert step(page) == 0
    press(page, "Play")
    expect_other_step(page, 0)


def test_cards_show_rewards_deaths_and_events(open_page: OpenPage) -> None:
    page = paused(open_page)
    expect(page.get_by_role("heading")).to_have_text("Sheep and wolves")
    expect(page.locator(".er-subtitle")).to_have_text("Grassland \u00b7 6-4")
    sheep, wolf = page.locator(".er-card").nth(0), page.locator(".er-card").nth(1)
    expect(sheep).to_contain_text("6 / 6 alive")
    expect(wolf.locator("dd")).to_have_text(["0.0", "0"])
    page.keyboard.press("End")
    expect(sheep).to_contain_text("5 / 6 alive")
    expect(sheep.locator("dd")).to_have_text(["\u22123.0", "1"])
    expect(wolf.locator("dd")).to_have_text(["+5.0", "1"])
    expect(page.locator(".er-world")).to_have_attribute(
        "aria-label", "grassland, step 12 of 12: 5 of 6 sheep alive, 4 of 4 wolf alive"
    )


def test_cards_show_the_coverage_of_fixed_food(open_page: OpenPage) -> None:
    page = paused(open_page, food_collection())
    expect(page.locator(".er-card").nth(0)).to_contain_text("10 agents")
    expect(page.locator(".er-card").nth(0)).to_contain_text("Contacts")
    expect(page.locator(".er-card").nth(1)).to_contain_text("2 / 4 occupied")


def test_slider_seeks_by_dragging(open_page: OpenPage) -> None:
    page = paused(open_page)
    box = page.locator(".er-scrub").bounding_box()
    assert box
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 8, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.54 * box["width"], middle)
    expect_step(page, STEPS // 2)
    page.mouse.move(box["x"] + box["width"] + 50, middle)
    page.mouse.up()
    expect_step(page, STEPS)
    page.locator(".er-scrub").fill("3")
    expect_step(page, 3)


def test_reward_chart_seeks_by_clicking(open_page: OpenPage) -> None:
    page = paused(open_page)
    box = page.locator(".er-spark").bounding_box()
    assert box
    page.mouse.click(box["x"] + box["width"] - 2, box["y"] + 20)
    expect_step(page, STEPS)


def test_keys_step_play_and_change_speed(open_page: OpenPage) -> None:
    page = paused(open_page)
    keys = page.keyboard
    for key, expected in [
        ("ArrowRight", 1),
        ("ArrowRight", 2),
        ("ArrowLeft", 1),
        ("End", STEPS),
        ("ArrowRight", STEPS),
        ("ArrowLeft", STEPS - 1),
        ("Home", 0),
        ("ArrowLeft", 0),
    ]:
        keys.press(key)
        expect_step(page, expected)
    keys.press("Space")
    expect_other_step(page, 0)
    keys.press("Space")
    expect(page.get_by_role("button", name="Play", exact=True)).to_be_visible()

    page.locator(".er-scrub").focus()
    keys.press("Home")
    keys.press("ArrowRight")
    expect_step(page, 1)

    for key, speed in [("+", "2"), ("+", "4"), ("-", "2"), ("-", "1"), ("-", "0.5"), ("-", "0.25")]:
        keys.press(key)
        expect(page.get_by_label("Speed")).to_have_value(speed)
    keys.press("-")
    expect(page.get_by_label("Speed")).to_have_value("0.25")

    help_panel = page.locator(".er-help")
    expect(help_panel).to_be_hidden()
    keys.press("?")
    expect(help_panel).to_be_visible()
    keys.press("Escape")
    expect(help_panel).to_be_hidden()


def test_buttons_step_restart_and_toggle(open_page: OpenPage) -> None:
    page = paused(open_page)
    press(page, "Step forward")
    press(page, "Step forward")
    expect_step(page, 2)
    press(page, "Step back")
    expect_step(page, 1)

    with_trails = pixels(page)
    press(page, "Trails")
    expect(page.get_by_role("button", name="Trails")).to_have_attribute("aria-pressed", "false")
    expect_other_pixels(page, with_trails)

    press(page, "Keyboard help")
    expect(page.locator(".er-help")).to_be_visible()
    press(page, "Keyboard help")

    page.keyboard.press("End")
    press(page, "Restart")
    expect_other_step(page, STEPS)
    page.locator(".er-world").click()
    expect(page.get_by_role("button", name="Play", exact=True)).to_be_visible()


def test_playback_stops_or_loops_at_the_end(open_page: OpenPage) -> None:
    page = paused(open_page)
    page.get_by_label("Speed").select_option("8")
    press(page, "Loop")
    press(page, "Play")
    expect(page.get_by_role("button", name="Play", exact=True)).to_be_visible()
    assert step(page) == STEPS
    press(page, "Loop")
    press(page, "Play")
    expect_step(page, STEPS)
    expect_other_step(page, STEPS)
    expect(page.get_by_role("button", name="Pause", exact=True)).to_be_visible()


def test_page_fits_every_screen_width(open_page: OpenPage) -> None:
    long = make_replay(title="Averylongtitlewithoutanyspaces" * 4)
    page = paused(open_page, long, device_scale_factor=2, has_touch=True)
    canvas = page.locator(".er-world")
    for width in (1280, 768, 360):
        page.set_viewport_size({"width": width, "height": 740})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        box = canvas.bounding_box()
        assert box
        assert box["width"] == pytest.approx(box["height"], abs=1)
        expect(canvas).to_have_js_property("width", round(2 * box["width"]))
        boxes = page.evaluate(
            "[...document.querySelectorAll('button')].map(b => b.getBoundingClientRect().toJSON())"
        )
        for button in boxes:
            assert min(button["width"], button["height"]) >= 40
            assert button["left"] >= 0
            assert button["right"] <= width
    page.get_by_role("button", name="Step forward").tap()
    expect_step(page, 1)


def test_page_follows_the_dark_theme(open_page: OpenPage) -> None:
    page = paused(open_page, color_scheme="light")
    light, background = pixels(page), "getComputedStyle(document.documentElement).backgroundColor"
    shade = page.evaluate(background)
    page.emulate_media(color_scheme="dark")
    expect_other_pixels(page, light)
    assert page.evaluate(background) != shade


def colour_at(picture: Image.Image, x: float, y: float) -> np.ndarray:
    """At a place of the world [-1, 1]^2, whose largest agents have radius 0.075."""
    half = 1 + 0.075 + 0.012 * 2
    column, row = (x + half) / (2 * half), (half - y) / (2 * half)
    place = int(column * picture.width), int(row * picture.height)
    return np.array(picture.convert("RGB").getpixel(place))


def test_agents_are_drawn_where_they_were_recorded(open_page: OpenPage) -> None:
    """All in corners of the view at the last step; what died is dark."""
    base = make_replay()
    position = base.position.copy()
    corners = {0: (-0.9, 0.9), 1: (0.9, 0.9), 6: (-0.9, -0.9), 9: (0.9, -0.9)}
    position[-2:] = 0.0
    for agent, place in corners.items():
        position[-2:, agent] = place
    still = {"food": np.full_like(base.food, 0.5), "occupied": np.zeros_like(base.occupied)}
    page = paused(open_page, make_replay(position=position, **still), color_scheme="light")
    page.keyboard.press("End")
    expect_step(page, STEPS)
    page.wait_for_timeout(50)
    picture = Image.open(io.BytesIO(base64.b64decode(pixels(page).split(",")[1])))
    shades = {agent: colour_at(picture, *place) for agent, place in corners.items()}
    assert shades[0].max() < 100  # died at step 5
    for agent, colour in ((1, "#4f8fd9"), (6, "#d9534a"), (9, "#d9534a")):
        expected = [int(colour[k : k + 2], 16) for k in (1, 3, 5)]
        np.testing.assert_allclose(shades[agent], expected, atol=14)
    assert (colour_at(picture, 0.6, 0.1) == 255).all()


def test_hundreds_of_agents_add_no_elements_to_the_page(open_page: OpenPage) -> None:
    def count(population: tuple[int, int]) -> int:
        page = open_page(factories.make_replay(population, steps=4))
        expect(page.locator(".er-card").first).to_contain_text(f"/ {population[0]} alive")
        expect_other_step(page, 0)
        return int(page.evaluate("document.querySelectorAll('*').length"))

    assert count((384, 256)) == count((6, 4))


def test_page_escapes_hostile_strings(open_page: OpenPage) -> None:
    hostile = "</script><b>bold</b><img src=x onerror=alert(1)>{{js}}"
    roles = (
        ReplayRole(hostile, "#4f8fd9", 0.05, 6),
        ReplayRole("__proto__", "#d9534a", 0.075, 4),
    )
    page = paused(
        open_page, make_replay(title=hostile, game=hostile, food_name=hostile, roles=roles)
    )
    expect(page.get_by_role("heading")).to_have_text(hostile)
    assert page.title() == hostile
    assert page.locator("main b", has_text="bold").count() == 0
    assert page.locator("img").count() == 0


def test_page_shows_a_replay_of_one_frame(open_page: OpenPage) -> None:
    whole = make_replay()
    first = {name: getattr(whole, name)[:1] for name in replay.ARRAYS if name != "obstacles"}
    page = open_page(make_replay(**first))
    expect_step(page, 0)
    page.wait_for_timeout(200)
    assert step(page) == 0


def test_players_in_one_page_are_independent(open_page: OpenPage) -> None:
    css, js = replay.player_assets()
    first, second = (
        json.dumps(replay.to_page_payload(r)) for r in (make_replay(), food_collection())
    )
    page = open_page(
        f"""<!doctype html><meta charset="utf-8"><style>{css}
        body {{ display: grid; grid-template-columns: 1fr 1fr; gap: 20px }}</style>
        <div></div><div></div><script>{js}
        const boxes = document.querySelectorAll("div");
        const players = [createReplay(boxes[0], {first}, {{ autoplay: false }}),
                         createReplay(boxes[1], {second}, {{ autoplay: false }})];</script>"""
    )
    left, right = page.locator(".epcx-replay").all()
    assert page.locator("[id]").count() == 0
    expect_step(right, 0)
    before = pixels(right)
    press(left, "Step forward")
    press(left, "Step forward")
    expect_step(left, 2)
    expect_step(right, 0)
    left.press("End")
    expect_step(left, STEPS)
    expect_step(right, 0)
    right.get_by_label("Speed").select_option("4")
    expect(left.get_by_label("Speed")).to_have_value("1")
    assert pixels(right) == before

    page.evaluate("players[1].seek(3)")
    expect_step(right, 3)
    expect_step(left, STEPS)
    assert page.evaluate("players[1].state()")["speed"] == 4
    page.evaluate("players[0].destroy()")
    expect(page.locator(".epcx-replay")).to_have_count(1)
    press(page, "Step forward")
    expect_step(page, 4)


def test_every_control_has_an_accessible_name(open_page: OpenPage) -> None:
    page = paused(open_page)
    for control in page.locator("button, input, select, canvas").all():
        label = control.get_attribute("aria-label")
        assert label
        assert re.search(r"\w", label)


def test_notebooks_show_the_page_in_a_sandboxed_frame(open_page: OpenPage) -> None:
    title = "\"'><b>bold</b>&amp;"
    page = open_page(f"<!doctype html>{make_replay(title=title)._repr_html_()}")
    expect(page.locator("iframe")).to_have_attribute("sandbox", "allow-scripts")
    assert page.locator("b").count() == 0
    frame = page.frame_locator("iframe")
    expect(frame.get_by_role("heading")).to_have_text(title)
    expect(frame.locator(".er-step")).not_to_have_text("0")
    box = page.locator("iframe").bounding_box()
    assert box
    assert min(box["width"], box["height"]) > 500
