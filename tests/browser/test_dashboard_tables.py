"""The dashboard's tables: searched, sorted, kept in the address, and what one may do there by role."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver

from accessibility import violations
from api_under_test import ApiUnderTest
from dashboard_page import Server
from empty_databases import empty_database as empty_database
from oakum_service.api.auth import Role
from oakum_service.db.models.cluster import ForegroundStart, NodeSetback, SnapshotRecord
from oakum_service.documents.node import Node, RecordedNodes
from oakum_service.states import NodeState
from page_states import on_a_phone
from service_page import ServicePage

pytestmark = pytest.mark.needs("browser")


class TablesPage(ServicePage):
    """The dashboard's views that are tables."""

    @property
    def names(self) -> list[str]:
        """The first cells of the table's rows."""
        return self.texts(".listing tbody th")

    @property
    def asked(self) -> str:
        """What the address asks for."""
        return str(self.driver.execute_script("return location.hash"))

    def search(self, text: str) -> None:
        """Write into the search field."""
        self.write("input[type=search]", text)

    def sort(self, title: str) -> None:
        """Press the head of a column."""
        script = "[...document.querySelectorAll('.sorter')].find((e) => e.textContent === arguments[0]).click()"
        self.driver.execute_script(script, title)

    def shows_rows(self, *names: str) -> None:
        """Wait until the table has these rows."""
        self.wait(lambda: self.names == [*names], f"the rows {names}")


@pytest.fixture(scope="class")
def api(empty_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiUnderTest]:
    folder = tmp_path_factory.mktemp("api")
    shutil.copy(empty_database, folder / "oakum.db")
    running = ApiUnderTest(folder)
    yield running
    running.news_for_readers.close()
    running.engine.dispose()


@pytest.fixture(scope="class")
def server(api: ApiUnderTest) -> Iterator[Server]:
    served = Server()
    served.app = api.app
    yield served
    api.news_for_readers.close()
    served.stop()


def observe(api: ApiUnderTest, *nodes: Node) -> None:
    """Write a snapshot with these nodes, as the controller would."""
    with api.sessions.begin() as session:
        session.add(SnapshotRecord(taken_at=1.0, body=RecordedNodes(nodes=nodes)))


def hole(name: str) -> Node:
    """An idle node."""
    return Node(name, NodeState.HOLE, "")


def some_nodes(api: ApiUnderTest) -> None:
    """Four nodes: one with a foreground job, two that are lent to digits, one unused."""
    observe(api, Node("n1", NodeState.FOREGROUND, "", job="4711"), hole("n2"), hole("n3"), hole("n10"))


@pytest.fixture(scope="class")
def signed_in(driver: WebDriver, server: Server, api: ApiUnderTest) -> TablesPage:
    trainer = api.submit()["id"]
    for node in ("n2", "n3"):
        api.add_fragment(trainer, node)
    now = time.time()
    with api.sessions.begin() as session:
        session.add(ForegroundStart(job="81_2", started_at=now - 100.0, num_nodes=3, delay_s=12.0))
        session.add(ForegroundStart(job="82", started_at=now - 50.0, num_nodes=1, delay_s=0.5))
        session.add(ForegroundStart(job="old", started_at=now - 3 * 86400.0, num_nodes=1, delay_s=99.0))
    opened = TablesPage(driver, server)
    opened.enter(api.new_token("anna", Role.ADMIN))
    return opened


class TestTables:
    """All tables of one service in one tab, signed in once as an administrator."""

    @pytest.fixture
    def page(self, signed_in: TablesPage, api: ApiUnderTest) -> TablesPage:
        some_nodes(api)
        signed_in.afresh()
        return signed_in

    def test_a_search_narrows_the_nodes_and_one_step_back_undoes_it(
        self, page: TablesPage, api: ApiUnderTest
    ) -> None:
        page.go("nodes")
        page.shows_rows("n1", "n2", "n3", "n10")
        page.search("digits")
        page.shows_rows("n2", "n3")
        assert page.texts(".found") == ["2 of 4 nodes"]
        assert page.asked == "#/nodes?q=digits"
        link = page.driver.current_url
        page.back()
        page.shows_rows("n1", "n2", "n3", "n10")
        page.driver.get("about:blank")
        page.driver.get(link)
        page.shows_rows("n2", "n3")
        page.click(".listing a[href$='/trainers/digits']")
        page.wait(lambda: page.texts(".view-head h2") == ["digits"], "the trainer")
        page.back()
        page.shows_rows("n2", "n3")
        page.search(Keys.CONTROL + "a" + Keys.NULL + "no such node")
        page.wait(lambda: "Nothing here matches" in page.texts(".empty")[0], "that there is none")
        assert page.errors() == []

    def test_nodes_are_sorted_and_filtered_and_none_that_is_lent_is_called_unused(
        self, page: TablesPage, api: ApiUnderTest
    ) -> None:
        page.go("nodes")
        page.shows_rows("n1", "n2", "n3", "n10")
        assert page.texts(".listing td:nth-child(2)") == ["foreground job", "starting", "starting", "unused"]
        page.sort("Node")
        page.shows_rows("n10", "n3", "n2", "n1")
        assert page.attributes(".listing thead th:first-child", "aria-sort") == {"descending"}
        page.click("select option[value=lent]")
        page.shows_rows("n3", "n2")
        page.click("select option[value=unused]")
        page.shows_rows("n10")
        assert page.asked == "#/nodes?sort=-name&state=unused"
        page.back()
        page.shows_rows("n3", "n2")
        page.back()
        page.shows_rows("n10", "n3", "n2", "n1")

    def test_a_node_that_is_avoided_says_so_and_why(self, page: TablesPage, api: ApiUnderTest) -> None:
        known = {
            "at": time.time(),
            "times": 2,
            "until_at": time.time() + 3000.0,
            "trainer_id": "t",
            "is_own": False,
        }
        with api.sessions.begin() as session:
            session.add(NodeSetback(node="n10", what="no `python3` there", **known))
        page.go("nodes")
        page.click("select option[value=avoided]")
        page.shows_rows("n10")
        (told,) = page.texts(".listing td:nth-child(4)")
        assert told.startswith("avoided for ")
        assert told.endswith(": no “python3” there")
        page.back()
        with api.sessions.begin() as session:
            session.delete(session.get_one(NodeSetback, "n10"))

    def test_5000_nodes_are_drawn_by_the_page_and_a_refresh_loses_no_place(
        self, page: TablesPage, api: ApiUnderTest
    ) -> None:
        observe(api, *(hole(f"n{number}") for number in range(5000)))
        page.go("nodes")
        page.wait(lambda: len(page.names) == 200, "the first page")
        page.press("More (4,800)")
        page.wait(lambda: len(page.names) == 400, "the second page")
        mark = (
            "const cell = document.querySelector('tr[data-id=n250] th');"
            "cell.scrollIntoView(); getSelection().selectAllChildren(cell); window.cell = cell"
        )
        page.driver.execute_script(mark)
        at = page.driver.execute_script("return scrollY")
        assert at > 0
        observe(api, *(hole(f"n{number}") for number in range(1, 5001)))
        page.wait(lambda: page.names[0] == "n1", "a refresh")
        same = "return [String(getSelection()), document.querySelector('tr[data-id=n250] th') === window.cell]"
        assert page.driver.execute_script(same) == ["n250", True]
        assert len(page.names) == 400
        page.search("4999")
        page.shows_rows("n4999")
        assert page.errors() == []

    def test_users_are_listed_with_what_they_have_and_may_have(self, page: TablesPage, api: ApiUnderTest) -> None:
        limits = api.admin.put("/v1/quotas/ulla", json={"nodes": 7})
        assert limits.status_code == 200, limits.text
        assert api.admin.put("/v1/quotas/zoe", json={"trainers": 1}).status_code == 200
        page.go("users")
        page.shows_rows("ulla", "zoe")
        row = page.texts(".listing tbody tr:first-child td")
        assert row[:2] == ["1 of 100", "2 of 7"]
        assert row[2].startswith("100")
        assert page.texts(".listing tbody tr:nth-child(2) td")[0] == "0 of 1"
        page.sort("Nodes now")
        page.sort("Nodes now")
        page.shows_rows("ulla", "zoe")

    def test_a_delay_that_happened_is_found_from_the_overview(self, page: TablesPage) -> None:
        page.wait(lambda: page.shows("#summary a"), "the tile")
        page.click("#summary a")
        page.wait(lambda: page.texts(".listing tbody td:nth-child(2)") == ["81_2", "82"], "the longest first")
        assert "2 jobs started; the longest wait was 12 s" in page.texts("#delay-sum")[0].replace("\u202f", " ")
        titles, periods = page.texts(".trend thead th"), page.texts(".trend tbody tr")
        assert len(titles) == (5 if len(periods) == 1 else 6), "bars beside each other where there are several"
        assert [len(page.texts(f".trend tr:nth-child({i + 1}) td")) for i in range(len(periods))] == [
            len(titles) - 1 for _ in periods
        ]
        assert "false" not in "".join(page.texts(".trend"))
        page.click("#field-reach option[value='604800']")
        page.wait(lambda: page.texts(".listing tbody td:nth-child(2)") == ["old", "81_2", "82"], "the week")
        assert "within=604800" in page.asked
        page.back()
        page.wait(lambda: page.texts(".listing tbody td:nth-child(2)") == ["81_2", "82"], "the day again")
        assert page.errors() == []

    def test_a_token_is_made_used_replaced_and_revoked(self, page: TablesPage, api: ApiUnderTest) -> None:
        page.go("tokens")
        page.wait(lambda: "anna" in page.names, "the tokens")
        [mine] = [text for text in page.texts(".listing tbody tr") if "this session" in text]
        assert "Replace" not in mine
        page.press("Make a token")
        page.fill("name", "ursula")
        page.fill("days", "2")
        page.press("Make it", "dialog")
        page.wait(lambda: page.shows(".token-text"), "its text")
        text = page.texts(".token-text")[0]
        page.wait(lambda: "ursula" in page.names, "its row")
        assert api.client(text).get("/v1/session").json()["name"] == "ursula"
        page.press("I have it")
        page.wait(lambda: not page.shows("#made"), "the text put away")
        page.search("ursula")
        page.shows_rows("ursula")
        page.press("Replace", ".listing")
        page.press("Replace", "dialog")
        page.wait(lambda: page.shows(".token-text"), "the new text")
        newer = page.texts(".token-text")[0]
        assert newer != text
        page.shows_rows("ursula", "ursula")
        for left in (1, 0):
            page.press("Revoke", ".listing")
            page.press("Revoke", "dialog")
            page.wait(lambda left=left: len(page.names) == left, "one less")  # type: ignore[misc]
        assert {api.client(each).get("/v1/session").status_code for each in (text, newer)} == {401}
        assert page.errors() == []

    def test_several_trainers_are_narrowed_chosen_and_cancelled_at_once_as_one_has_seen_them(
        self, page: TablesPage, api: ApiUnderTest
    ) -> None:
        for name in ("sweep-1", "sweep-2", "sweep-3"):
            api.submit(name=name)
        page.go("trainers")
        page.shows_rows("digits", "sweep-1", "sweep-2", "sweep-3")
        page.search("sweep")
        page.shows_rows("sweep-1", "sweep-2", "sweep-3")
        page.sort("Name")
        page.wait(lambda: page.names[:1] == ["sweep-3"], "the last first")
        for name in ("sweep-3", "sweep-1"):
            page.click(f"input[aria-label='Choose {name}']")
        page.driver.execute_script("performance.clearResourceTimings()")
        page.press("Cancel 2…", "#view")
        page.wait(lambda: "sweep-3" in "".join(page.texts("dialog p")), "their names")
        looks = """return performance.getEntriesByType("resource").filter(
            ({ name, responseEnd }) => /v1[/]trainers[/][^/?]+$/.test(name) && responseEnd).length"""
        page.wait(lambda: page.driver.execute_script(looks) == 2, "both looked up")
        assert api.admin.patch("/v1/trainers/sweep-1", json={"priority": -3}).status_code == 200
        page.press("Cancel them", "dialog")
        page.wait(lambda: page.texts("#view .found")[0].startswith("Done for 1 of 2. sweep-1:"), "the other one")
        assert "has changed since" in page.texts("#view .found")[0]
        assert self.statuses(api) == ["waiting", "waiting", "cancelling"]
        page.press("Cancel 1…", "#view")
        page.press("Cancel them", "dialog")
        page.wait(lambda: page.texts("#view .found")[0] == "Done for 1 of 1.", "what was done")
        assert self.statuses(api) == ["cancelling", "waiting", "cancelling"]
        assert all("412" in error for error in page.errors())

    def test_tags_and_notes_are_seen_changed_and_found(self, page: TablesPage, api: ApiUnderTest) -> None:
        for name in ("tagged", "untagged"):
            trainer = api.submit(name=name, notes=f"Notes of {name}.")
            api.end(trainer["id"])
        page.go("trainers/tagged")
        page.wait(lambda: page.texts(".notes") == ["Notes of tagged."], "the notes")
        page.press("Tags and notes", "#actions")
        page.fill("tags", "baseline, Sweep")
        page.press("Keep", "dialog")
        page.wait(lambda: "'Sweep' is not a valid tag" in page.texts("dialog .wrong")[0], "what is wrong")
        page.fill("tags", "baseline sweep-3")
        page.fill("notes", "Two\nlines")
        page.press("Keep", "dialog")
        page.wait(lambda: page.texts("#view .trainer .chip") == ["baseline", "sweep-3"], "the chips")
        page.wait(lambda: page.texts(".notes") == ["Two\nlines"], "the other notes")
        spec = api.admin.get("/v1/trainers/tagged").json()["spec"]
        assert (spec["tags"], spec["notes"]) == (["baseline", "sweep-3"], "Two\nlines")
        page.click("#view .trainer .chip")
        page.shows_rows("tagged")
        assert page.asked == "#/trainers?q=baseline&state=all"
        assert page.texts(".listing .chip") == ["baseline", "sweep-3"]
        page.go("compare?trainers=tagged")
        page.wait(lambda: "baseline, sweep-3" in page.texts("#view td"), "the tags beside the others")
        assert all("422" in error for error in page.errors())

    def test_a_view_of_trainers_is_saved_chosen_sent_as_a_link_and_forgotten(
        self, page: TablesPage, api: ApiUnderTest
    ) -> None:
        for name, tags in (("view-1", ["a"]), ("view-2", []), ("view-10", ["a"])):
            api.submit(name=name, tags=tags)
        heads = ".listing thead th:not([hidden])"
        page.go("trainers")
        page.search("view-")
        page.shows_rows("view-1", "view-2", "view-10")
        everything = page.texts(heads)
        page.sort("Name")
        page.click("#field-trainers-group option[value=tags]")
        page.shows_rows("a · 2 trainers", "view-10", "view-1", "without tags · 1 trainer", "view-2")
        page.click(".column-choice summary")
        page.click(".column-choice input[value=rate]")
        page.wait(lambda: page.texts(heads) == [one for one in everything if one != "Samples/s"], "one less")
        saved = page.asked
        assert {"q=view-", "sort=-name", "group=tags"} < set(saved.partition("?")[2].split("&"))
        page.press("Save view…", "#view")
        page.fill("name", "My sweep")
        page.press("Save", "dialog")
        page.wait(lambda: not page.shows("dialog"), "it saved")
        page.go("trainers")
        page.wait(lambda: page.texts(heads) == everything, "the whole table")
        page.wait(lambda: "view-1" in page.names, "its rows")
        page.click("#field-trainers-view option[value='My sweep']")
        page.shows_rows("a · 2 trainers", "view-10", "view-1", "without tags · 1 trainer", "view-2")
        link = page.driver.current_url
        of_a_colleague = "localStorage.removeItem('oakum.views.trainers.anna')"
        page.driver.execute_script(of_a_colleague)
        page.driver.get("about:blank")
        page.driver.get(link)
        page.shows_rows("a · 2 trainers", "view-10", "view-1", "without tags · 1 trainer", "view-2")
        assert page.texts("#field-trainers-view option") == ["none is saved"]
        page.driver.execute_script("localStorage.setItem('oakum.views.trainers.anna', 'no list')")
        page.press("Save view…", "#view")
        page.fill("name", "Theirs")
        page.press("Save", "dialog")
        page.press("Forget", "#view")
        page.press("Forget it", "dialog")
        page.wait(lambda: page.texts("#field-trainers-view option") == ["none is saved"], "that it is gone")
        assert page.errors() == []

    @staticmethod
    def statuses(api: ApiUnderTest) -> list[str]:
        """What each trainer of the sweep does."""
        trainers = {each["name"]: each["status"] for each in api.admin.get("/v1/trainers").json()["trainers"]}
        return [trainers[f"sweep-{number}"] for number in (1, 2, 3)]

    def test_the_audit_log_tells_who_did_what(self, page: TablesPage, api: ApiUnderTest) -> None:
        assert api.viewer.put("/v1/hold", json={"reason": "mine"}).status_code == 403
        page.go("audit")
        page.wait(lambda: any("trainer.submitted" in text for text in page.texts(".listing td")), "the acts")
        page.click("select option[value=refused]")
        page.wait(lambda: len(page.names) == 1, "the refused one")
        assert page.texts(".listing tbody td:nth-child(2)")[0].startswith("vera")
        page.search("no such act")
        page.wait(lambda: "Nothing here matches" in page.texts(".empty")[0], "that there is none")
        assert page.errors() == []

    def test_each_link_of_the_navigation_leads_to_a_view_and_is_marked_there(self, page: TablesPage) -> None:
        script = "return [...document.querySelectorAll('#views a')].map(({ dataset }) => dataset.view)"
        names = page.driver.execute_script(script)
        assert names[:2] == ["", "trainers"]
        assert len(set(names)) == len(names) > 5
        for name in names:
            page.click(f"#views a[data-view='{name}']")
            page.wait(lambda name=name: page.attributes("#views [aria-current]", "data-view") == {name}, name)  # type: ignore[misc]
            shown = "#view h2" if name else "#overview h2"
            page.wait(lambda shown=shown: page.shows(shown), name)  # type: ignore[misc]
            assert page.texts("#view h2") != ["No such view"]
        assert page.errors() == []

    def test_tables_fit_a_phone(self, page: TablesPage) -> None:
        # Once drawn. A page that is wider when it loads is laid out on a wider window, and scaled down.
        width = """const told = arguments[arguments.length - 1];
        requestAnimationFrame(() => requestAnimationFrame(() => told(document.documentElement.scrollWidth)))"""
        with on_a_phone(page.driver):
            page.driver.refresh()
            for view in ("trainers", "nodes", "users", "delays", "tokens", "audit"):
                page.go(view)
                page.wait(lambda: page.shows(".listing tbody tr") or page.shows("#view .empty"), view)
                assert (view, page.driver.execute_async_script(width)) == (view, 390)
                beside = """return [...document.querySelectorAll('.listing tbody :is(th, td, button)')]
                    .filter((one) => one.getBoundingClientRect().right > 390).map((one) => one.textContent)"""
                assert (view, page.driver.execute_script(beside)) == (view, [])

    @pytest.mark.parametrize(
        "dark", [pytest.param(False, id="light", marks=pytest.mark.soak), pytest.param(True, id="dark")]
    )
    def test_tables_break_no_rule_of_accessibility(self, page: TablesPage, dark: bool) -> None:
        for view in ("trainers", "nodes", "users", "delays", "tokens", "audit"):
            page.go(view)
            page.wait(lambda: page.texts(".listing tbody tr"), view)
            assert (view, violations(page, dark=dark)) == (view, [])
        page.go("tokens")
        page.press("Make a token")
        assert violations(page, dark=dark) == []


def test_a_user_is_shown_alone_and_a_viewer_sees_no_way_to_make_tokens(
    driver: WebDriver, server: Server, api: ApiUnderTest
) -> None:
    api.submit()
    page = TablesPage(driver, server)
    page.enter(api.new_token("uta", Role.USER), "users")
    page.shows_rows("uta")
    page.errors()  # of the page before, whose server has gone
    page.enter(api.new_token("vera", Role.VIEWER), "tokens")
    page.wait(lambda: set(page.names) == {"vera"}, "the viewer's own tokens")
    assert "Make a token" not in page.texts("button")
    assert not page.shows("#views [data-view=submit]")
    assert page.errors() == []
