"""What the dashboard shows of a living cluster."""

from __future__ import annotations

import pytest

from accessibility import violations
from dashboard_page import Page
from simulated_cluster import SimulatedCluster

pytestmark = pytest.mark.needs("browser")


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


def draw_charts(page: Page) -> None:
    """Bring the charts into view, where alone they are drawn."""
    page.driver.execute_script("document.querySelector('.charts').scrollIntoView()")
    page.wait(lambda: len(set(charts_drawn(page))) == 6, "three charts on each card")


@pytest.fixture(scope="class")
def overview(page: Page) -> Page:
    page.open()
    page.wait(lambda: page.texts(".plot .name") and page.texts(".trainer .use-name"), "nodes and cards")
    return page


class TestOverview:
    """The overview of a cluster, opened once: each test finds it at the last three minutes, its table of nodes
    open or not."""

    @pytest.fixture
    def opened(self, overview: Page) -> Page:
        overview.go()
        return overview

    def test_every_node_has_a_row(self, opened: Page, cluster: SimulatedCluster) -> None:
        opened.wait(lambda: opened.texts(".plot .name") == cluster.nodes, "a row for every node")

    def test_foreground_jobs_are_drawn_with_their_names(self, opened: Page, cluster: SimulatedCluster) -> None:
        drawn = opened.attributes(".plot .foreground", "data-job")
        known = {interval.job for interval in cluster.timeline(400).foreground}  # more than the window is drawn
        assert drawn
        assert drawn <= known
        assert {"md-protein", "qcd-lattice", "climate-lr"} & set(opened.texts(".plot .job-name"))

    def test_a_jobs_name_begins_where_the_last_fragment_has_left(self, opened: Page) -> None:
        script = """
            import("/static/js/timeline/row_bars.js").then(({ leftAt }) => arguments[0](leftAt([
                { start_at: 10, end_at: 104 },
                { start_at: 20, end_at: 107 },
                { start_at: 108, end_at: null },
            ], { start_at: 100, end_at: 120 }, 130)));
        """
        assert opened.driver.execute_async_script(script) == 107

    def test_times_without_a_stretch_are_those_of_which_nothing_is_known(self, opened: Page) -> None:
        script = """
            import("/static/js/timeline/row_bars.js").then(({ unknownParts }) => arguments[0]([
                [{ start_at: 20, end_at: 30 }, { start_at: 30.5, end_at: 40 }, { start_at: 50, end_at: null }],
                [{ start_at: 5, end_at: 90 }],
                [],
            ].map((known) => unknownParts(known, 10, 100, 1).map((part) => [part.start_at, part.end_at]))));
        """
        begun, ended, never = opened.driver.execute_async_script(script)
        assert begun == [[10, 20], [40, 50]]
        assert (ended, never) == ([[90, 100]], [[10, 100]])

    def test_what_lasts_ends_at_now(self, opened: Page) -> None:
        script = """
            const rightOf = (element) => element.getBoundingClientRect().right;
            const right = (selector) => Math.max(...[...document.querySelectorAll(selector)].map(rightOf));
            return right(".plot .training, .plot .hole, .plot .foreground") - right(".plot .now");
        """
        opened.wait(lambda: abs(opened.driver.execute_script(script)) < 3, "bars up to now, and no further")

    def test_parts_add_up_to_their_whole_as_it_is_written(self, opened: Page) -> None:
        script = """
            import("/static/js/format.js").then(({ nodeTimes }) => arguments[0]([
                nodeTimes([748, 3.3, 70, 3.5, 4], "node-minutes"),
                nodeTimes([200, 0.5, 0.4].map((hours) => 3600 * hours), "node-hours"),
            ]));
        """
        minutes, hours = opened.driver.execute_async_script(script)
        assert minutes == ["12.3", "0.1", "1.2", "0.1", "0.1"]
        assert hours == ["200", "1", "0"]

    def test_the_time_left_follows_from_what_was_measured_on_as_many_nodes(self, opened: Page) -> None:
        script = """
            const done = { state: "running", total_steps: 100, step: 50, samples: 5000, total_samples: 10000 };
            const view = { ...done, samples_per_s: 2 };
            const rates = [{ nodes: 1, samples_per_s: 50 }, { nodes: 2, samples_per_s: 100 }];
            import("/static/js/trainers.js").then(({ timeLeft }) => arguments[0]([
                timeLeft({ ...view, nodes: ["a", "b"], measured_rates: rates }),
                timeLeft({ ...view, nodes: ["a", "b", "c"], measured_rates: rates }),
                timeLeft({ ...view, nodes: [], measured_rates: rates }),
            ]));
        """
        assert opened.driver.execute_async_script(script) == [50, 2500, None]

    def test_what_nodes_use_has_its_age_unless_a_present_node_told_it_just_now(self, opened: Page) -> None:
        script = """
            Promise.all([import("/static/js/node_use.js"), import("/static/js/time.js")]).then(([{ ageOf }, { serviceNow }]) => {
                const told = (...ages) => ageOf({
                    latest: { at: serviceNow() - Math.min(...ages.map(([ageS]) => ageS)) },
                    nodes: ages.map(([ageS, is_present]) => ({ at: serviceNow() - ageS, is_present })),
                });
                arguments[0]([told([26, true]), told([26, false], [28, true]), told([26, false]),
                    told([26, false], [125, true]), told([125, true]), ageOf({ nodes: [] })]);
            });
        """  # noqa: E501
        told = [text.replace("\u202f", " ") for text in opened.driver.execute_async_script(script)]
        assert told == ["", "", "26 s ago", "26 s ago", "2 min 05 s ago", ""]

    def test_thousands_of_bars_are_a_shape_for_each_kind_and_colour(self, opened: Page) -> None:
        script = """
            import("/static/js/timeline/picture.js").then(({ Picture }) => {
                const root = document.createElement("div");
                document.body.append(root);
                const picture = new Picture(root);
                const fragments = Array.from({ length: 900 }, (_, i) => (
                    { start_at: i, training_at: i + 0.2, end_at: i + 0.9, trainer: `t${i % 300}` }));
                const none = { stretches: [], announced: [] };
                picture.layOut([{ node: "n1" }], 2);
                const store = { of: () => ({ ...none, fragments }), completeFrom: Infinity };
                picture.draw({ from: 0, to: 900 }, { at: 900, name: "now" }, store, () => null, "");
                const found = [root.querySelectorAll("path.training").length];
                for (const trainer of ["t7", null]) {
                    picture.mark(trainer);
                    const bright = [...root.querySelectorAll("path.training:not(.dimmed)")];
                    found.push(bright.length, bright.reduce((sum, path) => sum + path.getAttribute("d").split("M").length - 1, 0));
                }
                root.remove();
                arguments[0](found);
            });
        """  # noqa: E501
        assert opened.driver.execute_async_script(script) == [8, 1, 3, 8, 900]

    def test_a_marked_trainer_stays_in_the_legend_until_the_mark_is_taken_off(self, opened: Page) -> None:
        script = """
            import("/static/js/legend.js").then(({ showLegend }) => {
                const [list, picture] = [document.createElement("ul"), { marked: "zeta", drawnTrainers: new Set(["alpha"]) }];
                picture.mark = (trainer) => (picture.marked = trainer);
                const pressed = () => [...list.querySelectorAll("[aria-pressed=true]")].map((each) => each.textContent);
                const found = [];
                for (const nodes of [[], [{ trainer: "beta" }]]) {
                    showLegend(list, nodes, picture, new Set());
                    found.push(pressed());
                }
                list.querySelector("[aria-pressed=true]").click();
                arguments[0]([...found, pressed(), picture.marked]);
            });
        """  # noqa: E501
        assert opened.driver.execute_async_script(script) == [["zeta"], ["zeta"], [], None]

    def test_the_axis_of_a_phone_has_several_times(self, opened: Page) -> None:
        script = """
            import("/static/js/geometry.js").then(({ ticks }) => arguments[0](
                [180, 600, 3600, 86400, 604800].map((span) => ticks(1000, 1000 + span, 300).moments.length)));
        """
        assert min(opened.driver.execute_async_script(script)) > 3

    def test_numbers_of_a_column_have_as_many_decimals(self, opened: Page) -> None:
        script = """
            import("/static/js/format.js").then((format) => arguments[0]([
                ...[[0.5, 0.0216, null], [2.5, 0.00012], [1234.5, 2]].map((column) => format.decimals(column)),
                [0.5, 0.83, 2, 9.999].map(format.duration),
                format.metricColumn("acc", [0.5, null]),
                format.metricName("reconstruction_mse"),
            ]));
        """
        plain, mixed, great, times, shares, name = opened.driver.execute_async_script(script)
        assert plain == ["0.5000", "0.0216", "–"]
        assert (mixed, great) == (["2.5", "0.00012"], ["1,235", "2"])
        assert [time.replace("\u202f", " ") for time in times] == ["0.50 s", "0.83 s", "2 s", "10 s"]
        assert (shares[1], name) == ("–", "Reconstruction MSE")

    def test_a_number_stays_beside_its_unit(self, opened: Page) -> None:
        script = """
            import("/static/js/format.js").then(({ prose }) => arguments[1](prose(arguments[0])));
        """
        told = "Trains at 108 / s for 30 min, 5 s less than 97 % of `oakum ps` and 3 hours."
        shown = "Trains at 108~/~s for 30~min, 5~s less than 97~% of “oakum ps” and 3 hours."
        assert opened.driver.execute_async_script(script, told) == shown.replace("~", "\u202f")

    def test_quotations_stay_as_they_are_and_words_have_their_apostrophe(self, opened: Page) -> None:
        script = """
            import("/static/js/format.js").then(({ prose }) => arguments[1](prose(arguments[0])));
        """
        shown = opened.driver.execute_async_script(script, "trainer 'digits' has its user's quota")
        assert shown == "trainer 'digits' has its user’s quota"

    def test_the_tile_of_idle_time_has_one_percentage_unless_a_limit_is_exceeded(
        self, opened: Page, cluster: SimulatedCluster
    ) -> None:
        hours = {"idle": 10, "trained": 5, "stalled": 2, "start_up": 1, "late": 0, "unwanted": 2}
        went = {"since": 0, **{f"{part}_node_s": 3600 * hours[part] for part in hours}}
        seen = {"idle_node_s": 36_000, "used_node_s": 25_200, "idle_time": went}
        limited = {"lost_share": 0.2, "limit_lost_share": 0.1}
        document = cluster.cluster().model_dump(mode="json") | seen | limited
        script = """
            import("/static/js/summary.js").then(({ showSummary }) => {
                const tiles = document.createElement("dl");
                showSummary(tiles, arguments[0], [], false);
                arguments[1](tiles.children[2].textContent.replaceAll("\u202f", " "));
            });
        """
        told = opened.driver.execute_async_script(script, document)
        assert "70 %of the 10.0 node-hours that were idle in 7 days" in told
        used, unused = "5.0 trained, 2.0 stood still or repeated steps", "1.0 started up, 0.0 found late"
        assert f"Used, in node-hours: {used}. Not used: {unused}" in told
        assert told.count("%") == 1
        over = opened.driver.execute_async_script(script, document | {"exceeds_lost_share": True})
        assert "Of the node-time lent this month 20.0 % was lost, over the limit of 10.0 %" in over

    def test_holes_and_both_parts_of_the_fragments_are_drawn(self, opened: Page) -> None:
        assert opened.texts(".plot .hole")
        assert opened.attributes(".plot .training", "data-trainer") == {"digits", "charlm"}
        assert opened.attributes(".plot .warming", "data-trainer") == {"digits", "charlm"}

    def test_a_trainer_has_one_colour_everywhere(self, opened: Page) -> None:
        def tones(selector: str) -> set[str]:
            classes = opened.attributes(selector, "class")
            return {name for value in classes for name in value.split() if name.startswith("tone-")}

        assert len(tones(".training[data-trainer=digits]")) == 1
        assert tones(".training[data-trainer=digits]") == tones(".trainer[data-trainer=t-digits]")
        assert tones(".training[data-trainer=digits]") != tones(".training[data-trainer=charlm]")

    def test_every_trainer_has_a_card_with_its_figures_and_charts(self, opened: Page) -> None:
        assert opened.texts(".trainer h3") == ["digits", "charlm"]
        assert "97.3" in "".join(opened.texts("[data-trainer=t-digits] .facts dd"))
        said = ("Trains on", "Warms up on", "Is about to be launched on", "Waits: no node is idle.")
        assert opened.texts("[data-trainer=t-digits] .reason")[0].startswith(said)
        draw_charts(opened)

    def test_a_card_tells_where_the_trainers_time_went(self, opened: Page) -> None:
        card = "[data-trainer=t-charlm] .times "
        names = ["Training", "Growing", "Shrinking", "After losses", "Starting cold", "Without nodes"]
        assert opened.texts(card + ".use-name") == [*names, "Warm-up"]
        notes = dict(zip(names, opened.texts(card + ".use-note"), strict=False))
        assert "13 s of it for 41 steps taken again" in notes["Training"].replace("\u202f", " ")
        assert "median 0.31 s, last 0.28 s" in notes["Growing"].replace("\u202f", " ")
        script = (
            "return [...document.querySelectorAll(arguments[0])].map((e) => Number(getComputedStyle(e).flexGrow))"
        )
        shares = opened.driver.execute_script(script, card + ".time-bar span")
        assert len(shares) == len(names)
        assert sum(shares) == pytest.approx(1.0)
        bar = opened.attributes(card + ".time-bar", "aria-label").pop()
        assert bar.startswith("Training ")
        assert "Without nodes " in bar

    def test_a_card_tells_what_changes_while_it_trains(self, opened: Page) -> None:
        card = "[data-trainer=t-digits] .facts"
        texts = opened.texts(f"{card} dt, {card} dd")  # at once, since the card is filled anew meanwhile
        facts = dict(zip(texts[::2], texts[1::2], strict=True))
        assert (facts["Batch"], facts["Learning rate"]) == ("256 samples", "0.0125")
        assert facts["Checkpoint"].startswith("step ")
        assert facts["Checkpoint"].endswith(" ago")

    def test_progress_moves_without_any_event(self, opened: Page) -> None:
        before = opened.texts(".trainer .done")
        opened.wait(lambda: opened.texts(".trainer .done") != before, "more steps")

    def test_the_range_can_be_changed(self, opened: Page) -> None:
        before = bars_drawn(opened)
        opened.click("#ranges label:nth-of-type(3)")
        opened.wait(lambda: bars_drawn(opened) > 2 * before, "jobs of an hour")

    def test_the_nodes_can_be_read_as_a_table(self, opened: Page, cluster: SimulatedCluster) -> None:
        unfold_table(opened)
        opened.wait(lambda: opened.texts("#nodes tbody th") == cluster.nodes, "a row for every node")

    @pytest.mark.parametrize(
        "dark", [pytest.param(False, id="light", marks=pytest.mark.soak), pytest.param(True, id="dark")]
    )
    def test_the_overview_breaks_no_rule_of_accessibility(self, opened: Page, dark: bool) -> None:
        draw_charts(opened)
        unfold_table(opened)
        assert violations(opened, dark=dark) == []
        choose = "const rows = document.getElementById('rows-show'); rows.value = 'dense';"
        choose += "rows.dispatchEvent(new Event('input'));"
        name_before_data_come = "return document.querySelector('canvas.density').ariaLabel"
        assert opened.driver.execute_script(f"{choose} {name_before_data_come}")
        opened.wait(lambda: opened.shows("canvas.density"), "all nodes at once")
        assert violations(opened, dark=dark, within=".timeline") == []

    def test_it_slides_with_time_and_the_browser_complains_of_nothing(self, opened: Page) -> None:
        """Of nothing while the page loaded, drew its charts and slides, nor in what the tests above did."""
        draw_charts(opened)
        feature = {"name": "prefers-reduced-motion", "value": "no-preference"}
        opened.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})  # type: ignore[attr-defined]
        try:
            opened.wait(lambda: opened.attributes(".plot g", "transform") != {None}, "a picture that slides")
        finally:
            opened.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})  # type: ignore[attr-defined]
        assert opened.errors() == []


def unfold_table(page: Page) -> None:
    """Open the table of nodes with the mouse, unless it is open."""
    if not page.shows("#nodes"):
        page.click(".node-table summary")
    page.wait(lambda: page.shows("#nodes"), "the table of nodes")
