"""What the dashboard shows of a living cluster."""

from __future__ import annotations

import pytest

from accessibility import violations
from dashboard_page import Page
from simulated_cluster import SimulatedCluster

pytestmark = pytest.mark.needs("browser")


@pytest.fixture
def opened(page: Page) -> Page:
    page.open()
    page.wait(lambda: page.texts(".plot .name") and page.texts(".trainer .use-name"), "nodes and cards")
    return page


def charts_drawn(page: Page) -> list[int]:
    """The number of the chart that each drawn line belongs to."""
    script = """
        const charts = [...document.querySelectorAll(".trainer .chart")];
        const lines = [...document.querySelectorAll(".trainer .main-svg .lines")];
        return lines.map((line) => charts.indexOf(line.closest(".chart")));
    """
    return list(page.driver.execute_script(script))


def bars_drawn(page: Page) -> int:
    """How many foreground jobs are drawn: many are parts of one shape."""
    script = """
        const shapes = [...document.querySelectorAll(".plot .foreground")];
        return shapes.reduce((sum, one) => sum + (one.getAttribute("d") ?? "M").split("M").length - 1, 0);
    """
    return int(page.driver.execute_script(script))


def test_every_node_has_a_row(opened: Page, cluster: SimulatedCluster) -> None:
    assert opened.texts(".plot .name") == cluster.nodes


def test_foreground_jobs_are_drawn_with_their_names(opened: Page, cluster: SimulatedCluster) -> None:
    drawn = opened.attributes(".plot .foreground", "data-job")
    known = {interval.job for interval in cluster.timeline(400).foreground}  # more than the window is drawn
    assert drawn
    assert drawn <= known
    assert {"md-protein", "qcd-lattice", "climate-lr"} & set(opened.texts(".plot .job-name"))


def test_holes_and_both_parts_of_the_fragments_are_drawn(opened: Page) -> None:
    assert opened.attributes(".plot .hole", "fill") == {"url(#hatch)"}
    assert opened.attributes(".plot .training", "data-trainer") == {"digits", "charlm"}
    assert opened.attributes(".plot .warming", "data-trainer") == {"digits", "charlm"}


def test_a_trainer_has_one_colour_everywhere(opened: Page) -> None:
    def tones(selector: str) -> set[str]:
        classes = opened.attributes(selector, "class")
        return {name for value in classes for name in value.split() if name.startswith("tone-")}

    assert len(tones(".training[data-trainer=digits]")) == 1
    assert tones(".training[data-trainer=digits]") == tones(".trainer[data-trainer=t-digits]")
    assert tones(".training[data-trainer=digits]") != tones(".training[data-trainer=charlm]")


def test_the_range_can_be_changed(opened: Page) -> None:
    before = bars_drawn(opened)
    opened.click("#ranges label:nth-of-type(3)")
    opened.wait(lambda: bars_drawn(opened) > 2 * before, "jobs of an hour")


def test_every_trainer_has_a_card_with_its_figures_and_charts(opened: Page) -> None:
    assert opened.texts(".trainer h3") == ["digits", "charlm"]
    assert "97.3" in "".join(opened.texts("[data-trainer=t-digits] .facts dd"))
    said = ("Trains on", "Warms up on", "Is about to be launched on", "Waits: no node is idle.")
    assert opened.texts("[data-trainer=t-digits] .reason")[0].startswith(said)
    opened.driver.execute_script("document.querySelector('.charts').scrollIntoView()")
    opened.wait(lambda: len(set(charts_drawn(opened))) == 6, "three charts on each card")


def test_a_card_tells_where_the_trainers_time_went(opened: Page) -> None:
    card = "[data-trainer=t-charlm] .times "
    names = ["Training", "Growing", "Shrinking", "After losses", "Starting cold", "Without nodes"]
    assert opened.texts(card + ".use-name") == [*names, "Warm-up"]
    notes = dict(zip(names, opened.texts(card + ".use-note"), strict=False))
    assert "13 s of it for 41 steps taken again" in notes["Training"].replace("\u202f", " ")
    assert "median 0.31 s, last 0.28 s" in notes["Growing"].replace("\u202f", " ")
    script = "return [...document.querySelectorAll(arguments[0])].map((e) => Number(getComputedStyle(e).flexGrow))"
    shares = opened.driver.execute_script(script, card + ".time-bar span")
    assert len(shares) == len(names)
    assert sum(shares) == pytest.approx(1.0)
    bar = opened.attributes(card + ".time-bar", "aria-label").pop()
    assert bar.startswith("Training ")
    assert "Without nodes " in bar


def test_a_card_tells_what_changes_while_it_trains(opened: Page) -> None:
    card = "[data-trainer=t-digits] .facts"
    texts = opened.texts(f"{card} dt, {card} dd")  # at once, since the card is filled anew meanwhile
    facts = dict(zip(texts[::2], texts[1::2], strict=True))
    assert (facts["Batch"], facts["Learning rate"]) == ("256", "0.0125")
    assert facts["Checkpoint"].startswith("step ")
    assert facts["Checkpoint"].endswith(" ago")


def test_the_nodes_can_be_read_as_a_table(opened: Page, cluster: SimulatedCluster) -> None:
    opened.click(".node-table summary")
    opened.wait(lambda: opened.texts("#nodes tbody th") == cluster.nodes, "a row for every node")


def test_progress_moves_without_any_event(opened: Page) -> None:
    before = opened.texts(".trainer .done")
    opened.wait(lambda: opened.texts(".trainer .done") != before, "more steps")


def test_the_page_works_without_a_complaint_from_the_browser(opened: Page) -> None:
    opened.driver.execute_script("document.querySelector('.charts').scrollIntoView()")
    opened.wait(lambda: opened.texts(".main-svg .lines"), "charts")
    assert opened.errors() == []


def test_the_page_fits_a_narrow_screen(page: Page) -> None:
    size = {"width": 420, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)  # type: ignore[attr-defined]
    try:
        page.open()
        page.wait(lambda: page.texts(".trainer h3"), "cards")
        script = "const root = document.documentElement; return [root.scrollWidth, root.clientWidth]"
        needed, given = page.driver.execute_script(script)
        assert needed == given <= 420
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "dark", [pytest.param(False, id="light", marks=pytest.mark.soak), pytest.param(True, id="dark")]
)
def test_the_overview_breaks_no_rule_of_accessibility(opened: Page, dark: bool) -> None:
    opened.driver.execute_script("document.querySelector('.charts').scrollIntoView()")
    opened.wait(lambda: opened.texts(".main-svg .lines"), "charts")
    assert violations(opened, dark=dark) == []
    opened.click(".node-table summary")
    choose = "const rows = document.getElementById('rows-show'); rows.value = 'dense';"
    choose += "rows.dispatchEvent(new Event('input'));"
    name_before_data_come = "return document.querySelector('canvas.density').ariaLabel"
    assert opened.driver.execute_script(f"{choose} {name_before_data_come}")
    opened.wait(lambda: opened.shows("canvas.density"), "all nodes at once")
    assert violations(opened, dark=dark) == []


@pytest.mark.parametrize(
    "dark", [pytest.param(False, id="light", marks=pytest.mark.soak), pytest.param(True, id="dark")]
)
def test_signing_in_breaks_no_rule_of_accessibility(page: Page, dark: bool) -> None:
    page.driver.delete_all_cookies()
    page.open(token=None)
    page.wait(lambda: page.shows("#sign-in"), "the form")
    assert violations(page, dark=dark) == []
