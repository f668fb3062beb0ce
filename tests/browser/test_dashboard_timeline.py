"""Moving in time, and choosing rows, in the picture of nodes over time."""

from __future__ import annotations

from typing import Any

import pytest
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.actions.action_builder import ActionBuilder
from selenium.webdriver.remote.webelement import WebElement

from accessibility import violations
from dashboard_page import Page
from oakum_service.documents.announcement import AnnouncedKind, Announcement
from simulated_cluster import SimulatedCluster

pytestmark = pytest.mark.needs("browser")

CHOOSE = """
    const choice = document.getElementById(`rows-${arguments[0]}`);
    choice.value = arguments[1];
    choice.dispatchEvent(new Event("input"));
"""


def told(page: Page) -> str:
    return page.texts("#window")[0].replace("\u202f", " ")


def chosen(page: Page) -> str:
    """What a screen reader is told of the bar that keys have chosen; empty if none is."""
    script = """
        const id = document.querySelector(".rows").getAttribute("aria-activedescendant");
        return id ? document.getElementById(id).getAttribute("aria-label") : "";
    """
    return str(page.driver.execute_script(script))


def query(page: Page) -> dict[str, str]:
    script = "return Object.fromEntries(new URLSearchParams(location.hash.split('?')[1] ?? ''))"
    return dict(page.driver.execute_script(script))


def wheel(page: Page, selector: str, share: float = 0.5, **turned: Any) -> None:
    """Turn the wheel over a place of the element, `share` of its width from the left."""
    script = """
        const [selector, share, turned] = arguments;
        const box = document.querySelector(selector).getBoundingClientRect();
        document.querySelector(selector).dispatchEvent(new WheelEvent("wheel", { bubbles: true, cancelable: true,
            clientX: box.left + share * box.width, clientY: box.top + 5, ...turned }));
    """
    page.driver.execute_script(script, selector, share, turned)


def drag(page: Page, selector: str, by_px: int, at_share: float = 0.5) -> None:
    def pull(target: WebElement) -> None:
        start = round((at_share - 0.5) * target.size["width"])
        chain = ActionChains(page.driver).move_to_element_with_offset(target, start, 0).click_and_hold()
        for _ in range(4):
            chain.move_by_offset(by_px // 4, 0)
        chain.release().perform()

    page.on(selector, pull)


def point_at_widest_bar(page: Page, selector: str) -> str:
    """Move the mouse to the middle of the widest bar that is not near an edge; returns its trainer."""
    script = """
        const middle = (bar) => { const box = bar.getBoundingClientRect(); return (box.left + box.right) / 2; };
        const rows = document.querySelector(".rows").getBoundingClientRect();
        const isSeen = (bar) => middle(bar) > rows.left + 150 && middle(bar) < rows.right - 200;
        const bars = [...document.querySelectorAll(arguments[0])].filter(isSeen);
        const [bar] = bars.sort((a, b) => b.getBoundingClientRect().width - a.getBoundingClientRect().width);
        bar.scrollIntoView({ block: "nearest" });
        const { top, bottom } = bar.getBoundingClientRect();
        return [bar.dataset.trainer, middle(bar), (top + bottom) / 2];
    """
    trainer, x, y = page.driver.execute_script(script, selector)
    mouse = ActionBuilder(page.driver)
    mouse.pointer_action.move_to_location(round(x), round(y))
    mouse.perform()
    return str(trainer)


@pytest.fixture(scope="class")
def overview(page: Page) -> Page:
    page.open()
    page.wait(lambda: page.texts(".plot .training"), "fragments")
    page.wait(lambda: page.attributes(".strip-window", "width") != {None}, "the strip")
    return page


class TestPicture:
    """The picture of a cluster's nodes on a page that is opened once: each test finds it as a link to the overview
    shows it."""

    @pytest.fixture
    def opened(self, overview: Page) -> Page:
        overview.driver.execute_script("scrollTo(0, 0)")
        overview.go()
        overview.wait(lambda: told(overview).startswith("3 min in all: "), "the last three minutes")
        overview.wait(lambda: overview.shows(".plot .training"), "fragments")
        overview.errors()  # of the test before, which may have left for a page that is not served here
        return overview

    def test_the_wheel_over_the_axis_zooms_and_what_is_under_it_stays(self, opened: Page) -> None:
        wheel(opened, ".axis-box", deltaY=-800)
        opened.wait(lambda: told(opened).startswith("1 min in all: "), "a minute, the shortest time")
        wheel(opened, ".axis-box", deltaY=300)
        opened.wait(
            lambda: "to now" not in told(opened) and not told(opened).startswith("1 min in all: "), "a longer time"
        )

    def test_the_wheel_over_the_rows_zooms_with_ctrl_and_else_scrolls_the_page(self, opened: Page) -> None:
        wheel(opened, ".rows", deltaY=-200)
        assert told(opened).startswith("3 min in all: ")
        wheel(opened, ".rows", deltaY=-200, ctrlKey=True)
        opened.wait(lambda: not told(opened).startswith("3 min in all: "), "a shorter time")

    def test_dragging_the_rows_shows_what_was_before_and_now_leads_back(
        self, opened: Page, cluster: SimulatedCluster
    ) -> None:
        jobs = opened.attributes(".plot .foreground", "data-job")
        assert "to now" in told(opened)
        drag(opened, ".rows", 600)
        opened.wait(lambda: "to now" not in told(opened), "a fixed time")
        drag(opened, ".rows", 600)
        opened.wait(lambda: opened.attributes(".plot .foreground", "data-job") - jobs, "earlier jobs")
        assert {"from", "to"} <= query(opened).keys()
        opened.click("#to-now")
        opened.wait(lambda: "to now" in told(opened), "the present")
        opened.wait(lambda: "from" not in query(opened), "an address without a time")

    def test_keys_zoom_and_move(self, opened: Page) -> None:
        opened.write(".rows", "-")
        opened.wait(lambda: told(opened).startswith("4 min 30 s in all: "), "half as much again")
        opened.write(".rows", "+")
        opened.wait(lambda: told(opened).startswith("3 min in all: "), "as before")
        opened.write(".rows", Keys.SHIFT + Keys.ARROW_LEFT)
        opened.wait(lambda: "to now" not in told(opened), "an earlier time")
        opened.write(".rows", "n")
        opened.wait(lambda: "to now" in told(opened), "the present")

    def test_keys_move_between_bars_and_open_one(self, opened: Page, cluster: SimulatedCluster) -> None:
        first, second, *_ = cluster.nodes
        assert chosen(opened) == ""
        opened.write(".rows", Keys.ARROW_DOWN)
        opened.wait(lambda: chosen(opened).startswith(f"{first}: "), "a bar of the first row, in words")
        assert opened.shows(".chosen-bar")
        title = opened.texts(".tip strong")[0]
        assert chosen(opened).startswith(title)
        opened.write(".rows", Keys.ARROW_LEFT)
        opened.wait(lambda: opened.texts(".tip strong")[0] != title, "the bar before")
        assert chosen(opened).startswith(f"{first}: ")
        before = opened.texts(".tip strong")[0]
        opened.write(".rows", Keys.ARROW_RIGHT)
        opened.wait(lambda: opened.texts(".tip strong")[0] != before, "the bar after that")
        opened.write(".rows", Keys.ARROW_DOWN)
        opened.wait(lambda: chosen(opened).startswith(f"{second}: "), "the row below")
        stops = "return document.querySelectorAll('#timeline :is([tabindex=\"0\"], a, button, input)').length"
        assert opened.driver.execute_script(stops) == 1
        assert violations(opened, within="#timeline") == []
        for _ in range(40):
            if " trains" in chosen(opened):
                break
            opened.write(".rows", Keys.ARROW_LEFT)
            opened.wait(lambda: chosen(opened).startswith(f"{second}: "), "an earlier bar")
        trainer = chosen(opened).split(" trains")[0].rpartition(" ")[2]
        opened.write(".rows", Keys.ENTER)
        opened.wait(lambda: opened.driver.current_url.endswith(f"#/trainers/{trainer}"), "the trainer's page")
        opened.wait(lambda: opened.texts("#first-answer [role=alert]"), "that its documents are not served here")
        opened.go()
        opened.write(".rows", Keys.ARROW_DOWN)
        opened.wait(lambda: chosen(opened), "a bar")
        opened.write(".rows", Keys.ESCAPE)
        opened.wait(lambda: not chosen(opened) and not opened.shows(".chosen-bar"), "no bar")
        opened.errors()  # of the trainer's page

    def test_buttons_do_what_keys_do(self, opened: Page) -> None:
        opened.click("#zoom-out")
        opened.wait(lambda: told(opened).startswith("6 min in all: "), "twice the time")
        opened.click("#zoom-in")
        opened.wait(lambda: told(opened).startswith("3 min in all: "), "as before")
        opened.click("#earlier")
        opened.wait(lambda: "to now" not in told(opened), "an earlier time")
        opened.click("#later")
        opened.click("#later")
        opened.wait(lambda: "to now" in told(opened), "the present")
        assert opened.shows("#to-now:disabled")

    def test_a_time_is_chosen_on_the_strip(self, opened: Page) -> None:
        drag(opened, ".strip-chart", 200, at_share=0.2)
        opened.wait(lambda: {"from", "to"} <= query(opened).keys(), "a fixed time")
        chosen = query(opened)
        width = opened.driver.execute_script("return document.querySelector('.strip-chart').clientWidth")
        assert int(chosen["to"]) - int(chosen["from"]) == pytest.approx(3600 * 200 / width, rel=0.1)

    def test_a_link_reproduces_time_and_rows(self, opened: Page, cluster: SimulatedCluster) -> None:
        begin = int(cluster.clock()) - 900
        address = f"{opened.server.url}#/?from={begin}&to={begin + 300}&show=all&order=state&find=node-00"
        opened.driver.get("about:blank")
        opened.driver.get(address)
        opened.wait(lambda: told(opened).startswith("9 of 12 nodes; 5 min in all: "), "the time and the rows")
        chosen = "return ['find', 'order'].map((name) => document.getElementById(`rows-${name}`).value)"
        assert opened.driver.execute_script(chosen) == ["node-00", "state"]

    def test_a_link_that_is_followed_on_the_open_page_is_shown_and_nonsense_shows_the_present(
        self, opened: Page
    ) -> None:
        opened.go("?span=600&find=node-003")
        opened.wait(lambda: told(opened).startswith("1 of 12 nodes; 10 min in all: "), "another time and one row")
        opened.go("?from=x&to=-1&span=lots&show=none&order=%00&find=")
        opened.wait(lambda: told(opened).startswith("3 min in all: "), "the present")
        assert len(opened.texts(".plot .name")) == 12
        assert opened.errors() == []

    def test_rows_are_found_and_none_is_told(self, opened: Page, cluster: SimulatedCluster) -> None:
        opened.write("#rows-find", "node-01")
        opened.wait(lambda: opened.texts(".plot .name") == ["node-010", "node-011", "node-012"], "three nodes")
        opened.write("#rows-find", "nothing")
        opened.wait(lambda: opened.shows("#no-rows"), "a sentence")
        assert "No node is like that" in opened.texts("#no-rows")[0]
        opened.wait(lambda: query(opened).get("find") == "node-01nothing", "the address")

    def test_a_search_finds_what_ran_in_the_time_shown(self, opened: Page, cluster: SimulatedCluster) -> None:
        begin = int(cluster.clock()) - 900
        job = next(job.job for job in cluster.jobs if begin < job.start_at < begin + 60)
        ran_on = sorted({ran.node for ran in cluster.jobs if ran.job == job})
        opened.go(f"?from={begin}&to={begin + 120}&find={job}")
        opened.wait(lambda: opened.texts(".plot .name") == ran_on, "the nodes that the job ran on")
        opened.go(f"?from={begin + 300}&to={begin + 420}&find={job}")
        opened.wait(lambda: opened.shows("#no-rows"), "no node of a later time")
        assert "in the time shown" in opened.texts("#no-rows")[0]

    def test_rows_are_chosen_by_what_the_nodes_do(self, opened: Page, cluster: SimulatedCluster) -> None:
        opened.driver.execute_script(CHOOSE, "show", "foreground")
        opened.wait(lambda: "of 12 nodes; " in told(opened), "some rows")
        shown = opened.texts(".plot .name")
        busy = {node.name for node in cluster.node_list().nodes if node.state == "foreground"}
        assert len(shown) <= len(busy) + 3
        opened.driver.execute_script(CHOOSE, "show", "trainers")
        opened.wait(lambda: opened.texts(".plot .name") != shown, "other rows")

    def test_groups_have_titles_with_their_sizes(self, opened: Page, cluster: SimulatedCluster) -> None:
        opened.driver.execute_script(CHOOSE, "order", "state")
        opened.wait(lambda: opened.texts(".plot .group"), "groups")
        sizes = [int(text.rsplit(": ", 1)[1]) for text in opened.texts(".plot .group")]
        assert sum(sizes) == len(cluster.nodes)
        assert len(opened.texts(".plot .name")) == len(cluster.nodes)

    def test_all_nodes_at_once_tell_their_shares_and_lead_to_the_rows(self, opened: Page) -> None:
        opened.driver.execute_script(CHOOSE, "show", "dense")
        opened.wait(lambda: opened.shows("canvas.density"), "the picture of all nodes")
        assert not opened.shows(".rows")
        assert not opened.shows("#legend"), "colours that this picture does not have"
        script = "const c = document.querySelector('canvas.density'); return [c.width, c.height]"
        opened.wait(lambda: opened.driver.execute_script(script)[1] == 12, "a band for each node")
        picture = "canvas.density"
        opened.on(picture, lambda e: ActionChains(opened.driver).move_to_element_with_offset(e, 0, 0).perform())
        opened.wait(lambda: any("foreground jobs 49" in text for text in opened.texts(".tip p")), "shares")
        opened.on(picture, lambda e: ActionChains(opened.driver).double_click(e).perform())
        opened.wait(lambda: opened.shows(".rows"), "the rows")
        assert opened.shows("#legend")
        assert opened.errors() == []

    def test_pointing_and_clicking_tell_what_a_bar_is(self, opened: Page) -> None:
        trainer = point_at_widest_bar(opened, ".plot rect.training")
        opened.wait(lambda: any(f": {trainer} " in text for text in opened.texts(".tip strong")), "what it is")
        point_at_widest_bar(opened, f".plot rect.training[data-trainer='{trainer}']")
        ActionChains(opened.driver).click().perform()
        opened.wait(lambda: opened.shows("#selected a"), "the trainer's link")
        assert opened.attributes("#selected a", "href") == {f"#/trainers/{trainer}"}

    def test_one_trainer_is_told_from_the_others_by_the_legend(self, opened: Page) -> None:
        opened.wait(lambda: opened.texts(".legend-trainer"), "trainers in the legend")
        name = opened.texts(".legend-trainer")[0]
        opened.click(".legend-trainer")
        dimmed = opened.wait(
            lambda: opened.attributes(".plot .dimmed", "data-trainer"), "others in the background"
        )
        assert name not in dimmed
        opened.click(".legend-trainer[aria-pressed=true]")
        opened.wait(lambda: not opened.texts(".plot .dimmed"), "all in the foreground again")

    def test_the_legend_names_every_trainer_that_is_drawn(self, opened: Page) -> None:
        opened.wait(lambda: opened.texts(".plot [data-trainer]") and opened.texts(".legend-trainer"), "trainers")
        opened.wait(
            lambda: (
                opened.attributes(".plot [data-trainer]", "data-trainer") <= {*opened.texts(".legend-trainer")}
            ),
            "each of them in the legend",
        )

    def test_what_is_expected_is_outlined_to_the_right_of_now(self, opened: Page) -> None:
        opened.wait(lambda: opened.texts(".plot .to-come"), "the part to come")
        script = "return [...document.querySelectorAll('.to-come, .now')].map((e) => e.getBoundingClientRect().x)"
        left, now = opened.driver.execute_script(script)
        assert left == pytest.approx(now, abs=2)

    def test_what_the_scheduler_announces_is_drawn_told_and_reached_by_keys(
        self, opened: Page, cluster: SimulatedCluster
    ) -> None:
        def now_is_at() -> float:
            """The share of the time shown that is left of now."""
            script = """
                const now = document.querySelector(".plot .now").getBoundingClientRect().x;
                const rows = document.querySelector(".rows").getBoundingClientRect().x;
                const shown = document.querySelector("#shown rect");
                return (now - rows - shown.getAttribute("x")) / shown.getAttribute("width");
            """
            return float(opened.driver.execute_script(script))

        first, second, third, *_ = cluster.nodes
        at = cluster.clock()
        job = Announcement(AnnouncedKind.JOB, "9001", "cfd-next", f"{first},{second}", at + 60.0, at + 3600.0)
        upkeep = Announcement(AnnouncedKind.RESERVATION, "upkeep", "maintenance", third, at - 9.0, None)
        opened.go("?span=600")
        opened.wait(lambda: told(opened).startswith("10 min in all: ") and now_is_at() > 0.85, "ten minutes")
        cluster.announced += [job, upkeep]
        try:
            opened.wait(lambda: opened.attributes(".plot .announced", "data-name") == {"9001"}, "the job")
            assert opened.attributes(".plot .reserved", "data-name") == {"upkeep"}
            opened.wait(lambda: now_is_at() < 0.75, "room for what is to come")
            opened.wait(lambda: opened.texts(".plot .to-come-name") == ["cfd-next", "upkeep"], "their names")
            legend = "Foreground job announced", "Reservation"
            opened.wait(lambda: {*legend} <= {*opened.texts("#legend li")}, "the legend")
            opened.write(".rows", Keys.ARROW_DOWN)
            opened.wait(lambda: chosen(opened).startswith(f"{first}: "), "a bar of the first row")
            opened.write(".rows", Keys.ARROW_RIGHT)
            opened.wait(lambda: "foreground job 9001 is announced; cfd-next; " in chosen(opened), "the job")
            assert opened.texts(".tip p")[0] == "cfd-next"
            opened.write(".rows", Keys.ARROW_DOWN)
            opened.write(".rows", Keys.ARROW_DOWN)
            told_of = f"{third}: reservation upkeep; maintenance; since "
            opened.wait(lambda: chosen(opened).startswith(told_of), "the reservation")
            assert chosen(opened).endswith(", no end is known")
            assert violations(opened, within="#timeline") == []
        finally:
            cluster.announced.clear()
        opened.write(".rows", Keys.ESCAPE)
        opened.wait(lambda: now_is_at() > 0.85, "no more room than before")

    def test_a_picture_that_was_moved_does_not_slide_with_time(self, opened: Page) -> None:
        drag(opened, ".rows", 600)
        opened.wait(lambda: "from" in query(opened), "a fixed time")
        before = told(opened)
        # Two more answers have come when the progress has changed twice.
        for _ in range(2):
            done = opened.texts(".trainer .done")
            opened.wait(lambda seen=done: opened.texts(".trainer .done") != seen, "a refresh")  # type: ignore[misc]
        assert told(opened) == before
