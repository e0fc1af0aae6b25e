"""The page: what it escapes, and how it behaves in a real browser."""

import os
import re
import shutil
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

from popqorn import plot
from popqorn.report.drawn import Drawn, sheet
from popqorn.report.page import Gallery, Report, Scale, Section, Table, Text, Words, number

RADII = [0.5, 0.1, 0.9, 0.3]
PEN = [[5, 5, 0, 0], [3, 0, 1, 0], [0, 4, 0, 0], [-3, 1, 1, 1]]
FRAMES = [f"frame {place}: radius {radius}" for place, radius in enumerate(RADII, start=1)]
WAVE = [[0, 1], [1, -2], [2, 3], [0, 0]]


def drawings() -> list[Drawn]:
    """One of every picture that is pointed at in another way."""
    places = plot.pen_places(PEN)
    steps = [places[:1], *(places[index : index + 2] for index in range(3))]
    pen, bars = partial(plot.strokes, PEN, RADII, circled=[1]), partial(plot.bars, RADII)
    points = [[(0.0, 2.0)], [(1.0, 3.0)]]
    return [
        Drawn("digit", pen, "a digit", (3.0, 4.2), FRAMES, steps, bars),
        Drawn("sound", partial(plot.spectrogram, WAVE, RADII), "sound", tips=FRAMES, below=bars),
        Drawn("beat", partial(plot.signal, WAVE, RADII), "a <beat>", tips=FRAMES, below=bars),
        Drawn("brackets", partial(plot.brackets, [0.1, 0.2], [0.4, 0.9]), "brackets", tips=["one: <certified> 0.1", "two"]),
        Drawn("spread", partial(plot.distributions, {"a & b": [0.1, 0.2], "none": []}), "spread"),
        Drawn("position", partial(plot.positions, [0, 1], [1, 2], [2, 3], [3, 4]), "position", tips=["a", "b"], lines=points),
    ]


def report() -> Report:
    """One of every kind of part."""
    table = Table("radii", ["name", "radius", "left"], [["b", 0.5, 1], ["a", 10.0, None], ["c <&>", 2.0, 3]], "A note.")
    digit, *others = drawings()
    words = Words(["who", "wrote", "<this>", "?"], RADII, [1], "a question", ["", "Changed by: read (LOC)", "", ""])
    parts = [Text("A paragraph with <b>no markup</b>."), table, Scale(), Gallery([digit]), *others, words]
    return Report("A & B", "The lead.", [("42", "things")], [Section("All parts", parts)], {"torch": "2"})


class Closing(HTMLParser):
    """Checks that elements close in order, and collects what they ask for."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.asked: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.asked += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_self_contained_and_escaped() -> None:
    page = report().html()
    parser = Closing()
    parser.feed(page)
    assert parser.open == []
    assert parser.asked == ["data:,"]
    assert all(asked.startswith(("data:", "#")) for asked in re.findall(r'xlink:href="([^"]*)', page))
    ids = re.findall(r'\bid="([^"]*)', page)
    assert len(ids) == len(set(ids)), "parts of one picture are not taken for those of another"
    for text in ("<b>no markup", "<this>", "c <&>", "<beat>", "<certified>", "a & b"):
        assert text not in page
    assert "A &amp; B" in page


def test_tables_are_written_for_people_and_programs(tmp_path: Path) -> None:
    table = report().tables[0]
    assert table.markdown().splitlines()[0] == "| name | radius | left |"
    assert "| a | 10 |  |" in table.markdown()
    assert table.csv().splitlines() == ["name,radius,left", "b,0.5,1", "a,10.0,", "c <&>,2.0,3"]
    assert "in `long.csv`" in Table("long", ["n"], [[number] for number in range(500)]).markdown()
    written = report().write(tmp_path / "new")
    assert [path.name for path in written] == ["index.html", "report.md", "radii.csv"]


def test_numbers_for_people() -> None:
    assert number(float("nan")) == "-"
    assert number(0.123456) == "0.123"
    assert number(123456789.0) == "1.23e+08"


def test_a_picture_takes_the_page_s_colours_and_leaves_no_state(tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    for picture in drawings():
        shown = picture.html()
        assert f'aria-label="{picture.caption.replace("<", "&lt;").replace(">", "&gt;")}"' in shown
        assert "var(--ink)" in shown
        assert not any(colour in shown for colour in (plot.PROVEN, plot.BROKEN, plot.INK)), "dark pages have colours of their own"
        assert "<style" not in shown
        picture.write(tmp_path / "one.png")
    panels = [(picture.caption, picture.draw) for picture in drawings()]
    sheet(tmp_path / "all.png", panels, columns=4, size=(2.0, 2.0))
    assert {path.read_bytes()[:4] for path in tmp_path.iterdir()} == {b"\x89PNG"}
    assert dict(mpl.rcParams) == before


def test_whatever_is_pointed_at_has_its_tip_once_for_every_picture_it_is_in() -> None:
    for picture in drawings():
        told = re.findall(r'data-frame="(\d)".*?data-tip="([^"]*)"', picture.html())
        times = 1 if picture.below is None else 2
        expected = [(str(place), tip.replace("<", "&lt;").replace(">", "&gt;")) for place, tip in enumerate(picture.tips)]
        assert told == times * expected


def test_the_parts_to_point_at_lie_over_what_they_tell_of() -> None:
    brackets = next(picture for picture in drawings() if picture.name == "brackets").html()
    lines = [float(x) for x in re.findall(r'd="M ([\d.]+) [\d.]+ \nL \1 [\d.]+ \n" [^>]*var\(--open\)', brackets)]
    found = re.findall(r'<rect class="column" data-frame="\d" x="([\d.]+)" .*? width="([\d.]+)"', brackets)
    columns = [(float(left), float(left) + float(width)) for left, width in found]
    assert len(lines) == len(columns) == 2
    assert all(left < x < right for x, (left, right) in zip(lines, columns, strict=True))
    digit = drawings()[0].html()
    steps = re.findall(r'd="M ([\d.]+) ([\d.]+) \nL ([\d.]+) ([\d.]+) \n" [^>]*stroke-width: (?:4|1.2)\b', digit)
    start, *lines_over = re.findall(r'class="line" data-frame="\d" d="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)', digit)
    assert start[:2] == start[2:] == lines_over[0][:2]
    assert len(steps) == len(lines_over) == 3
    for step, over in zip(steps, lines_over, strict=True):
        assert [float(number) for number in step] == pytest.approx([float(number) for number in over], abs=0.06)


# ---- in a browser ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        if os.environ.get("POPQORN_BROWSER") == "required":
            pytest.fail("POPQORN_BROWSER is 'required', but chromium or chromedriver is not installed")
        pytest.skip("needs chromium and chromedriver (Debian: apt-get install chromium chromium-driver)")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    profile = tmp_path_factory.mktemp("profile")
    for flag in (
        "headless=new",
        "no-sandbox",
        "disable-gpu",
        "disable-dev-shm-usage",
        "no-first-run",
        "disable-background-networking",
    ):
        options.add_argument(f"--{flag}")
    for flag in ("disable-component-update", "disable-sync", f"user-data-dir={profile}", "window-size=1000,900"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    running = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield running
    running.quit()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Any:
    page, *_ = report().write(tmp_path)
    browser.set_window_size(1000, 900)
    browser.get(page.as_uri())
    return browser


def find(browser: Any, selector: str) -> list[Any]:
    return list(browser.find_elements("css selector", selector))


def point_at(browser: Any, element: Any) -> None:
    from selenium.webdriver import ActionChains

    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    ActionChains(browser).move_to_element(element).perform()


def test_the_page_opens_without_errors(opened: Any) -> None:
    assert opened.title == "A & B | POPQORN"
    assert [entry for entry in opened.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    assert len(find(opened, "svg.chart")) == 6


def test_a_click_sorts_a_table_and_another_turns_it_round(opened: Any) -> None:
    def column(place: int) -> list[str]:
        return [cell.text for cell in find(opened, f"#table-radii tbody td:nth-child({place})")]

    name, radius, left = find(opened, "#table-radii th button")
    radius.click()
    assert column(2) == ["0.5", "2", "10"]
    radius.click()
    assert column(2) == ["10", "2", "0.5"]
    assert find(opened, "#table-radii th")[1].get_attribute("aria-sort") == "descending"
    name.click()
    assert column(1) == ["a", "b", "c <&>"]
    left.click()
    assert column(3) == ["1", "3", ""], "missing values last"


@pytest.mark.parametrize(
    ("selector", "told"),
    [
        (".gallery [data-frame='2'].line", "frame 3: radius 0.9"),
        (".word.sensitive", "word 2, 'wrote': radius 0.1. Changed by: read (LOC)"),
        (".gallery [data-frame='1'].column", "frame 2: radius 0.1"),
        ("[aria-label='sound'] [data-frame='1']", "frame 2: radius 0.1"),
        ("[aria-label='a <beat>'] [data-frame='3']", "frame 4: radius 0.3"),
        ("[aria-label='brackets'] .column", "one: <certified> 0.1"),
        ("[aria-label='position'] .line[data-frame='1']", "b"),
    ],
)
def test_pointing_at_a_mark_tells_frame_and_radius(opened: Any, selector: str, told: str) -> None:
    (tip,) = find(opened, "#tip")
    mark = find(opened, selector)[0]
    point_at(opened, mark)
    assert tip.get_attribute("textContent") == told
    assert "shown" in tip.get_attribute("class")
    point_at(opened, find(opened, "h1")[0])
    assert "shown" not in (tip.get_attribute("class") or "")


def test_the_step_and_its_bar_light_up_together(opened: Any) -> None:
    point_at(opened, find(opened, ".gallery rect[data-frame='1']")[0])
    lit = find(opened, ".gallery .lit")
    assert {mark.tag_name for mark in lit} == {"rect", "path"}
    assert {mark.get_attribute("data-frame") for mark in lit} == {"1"}


def test_light_and_dark(opened: Any) -> None:
    def paper() -> str:
        return str(opened.execute_script("return getComputedStyle(document.body).backgroundColor"))

    before = paper()
    find(opened, "#theme")[0].click()
    after = paper()
    assert before != after
    find(opened, "#theme")[0].click()
    assert paper() == before


def test_nothing_sticks_out_on_a_phone(opened: Any) -> None:
    opened.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 380, "height": 800, "deviceScaleFactor": 2, "mobile": True}
    )
    opened.execute_script("document.querySelector('h1').textContent = '/models/'.repeat(20)")
    width, content = opened.execute_script("return [innerWidth, document.documentElement.scrollWidth]")
    opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert width == 380
    assert content <= width
