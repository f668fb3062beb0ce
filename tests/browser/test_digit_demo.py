"""`oakum demo digits` in a browser: held-out digits are drawn as strokes, recognised, encoded and redrawn."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi import Request
from fastapi.responses import Response
from selenium.webdriver.common.actions.action_builder import ActionBuilder
from selenium.webdriver.common.actions.pointer_input import PointerInput
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver

from dashboard_page import Page, Server
from digit_networks import DigitNetworks
from digit_strokes import Point, strokes_of
from oakum_client.demo import FOLDER
from oakum_client.demo.chain import DemoRole, TrainerChain, read_specs
from oakum_client.demo.follower import Follower
from oakum_client.demo.pages import demo_app
from oakum_client.rest.client import OakumClient
from oakum_worker.checkpoint.weights import load_weights
from page_states import on_a_phone
from running_service import EXAMPLES
from slanted_digits import slanted_digits

pytestmark = pytest.mark.needs("browser")

# Floors that docs/trainer/map_reduce.md declares, of held-out digits drawn as strokes.
LEAST_OF_TEN, LEAST_OF_ALL, MOST_ERROR = 9, 0.9, 0.03
LEAST_SLANTED = 28
"""Of 30."""


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> DigitNetworks:
    made = DigitNetworks(tmp_path_factory.mktemp("networks"))
    for role in DemoRole:
        made.train(role)
    return made


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    from rbm.data import digits

    return digits(held_out=True)


class Demo:
    """A follower of folders, its page's server, and the answers' statuses by path."""

    def __init__(self, follower: Follower) -> None:
        self.follower = follower
        self.follower.turn()
        self.app = demo_app(follower)
        self.answers: list[tuple[str, int]] = []
        self.app.middleware("http")(self._note)
        self.server = Server()
        self.server.app = self.app

    async def _note(self, request: Request, answer: Callable[..., Any]) -> Response:
        response: Response = await answer(request)
        self.answers.append((request.url.path, response.status_code))
        return response


@pytest.fixture(scope="class")
def opened(driver: WebDriver) -> Iterator[Callable[[Follower], tuple[Page, Demo]]]:
    """Opens the page of a follower."""
    demos = []

    def open_page(follower: Follower) -> tuple[Page, Demo]:
        demos.append(demo := Demo(follower))
        page = Page(driver, demo.server)
        page.errors()
        page.open(token=None)
        page.wait(lambda: page.texts("#liveness") != [""], "the first answer")
        return page, demo

    yield open_page
    driver.get("about:blank")
    for demo in demos:
        demo.server.stop()


def compute(page: Page, body: str, *arguments: object) -> Any:
    """Run JavaScript in the page with its modules; returns what `body` returns."""
    script = """
        const [done, given] = [arguments[arguments.length - 1], [...arguments].slice(0, -1)];
        const modules = ["networks", "preprocess", "weights"].map((name) => import(`/static/js/${name}.js`));
        Promise.all(modules).then(async ([networks, preprocess, weights]) => { BODY }).then(done);
    """
    page.driver.set_script_timeout(240)
    return page.driver.execute_async_script(script.replace("BODY", body), *arguments)


def draw(page: Page, strokes: list[list[Point]]) -> None:
    """Draw with the mouse on the cleared pad, as somebody would."""
    pad = page.driver.find_element("id", "pad")
    page.driver.execute_script("scrollTo(0, 0); document.getElementById('clear').click()")
    box = pad.rect
    actions = ActionBuilder(page.driver, mouse=PointerInput("mouse", "mouse"), duration=0)
    pointer = actions.pointer_action
    for stroke in strokes:
        places = [(round(box["x"] + x * box["width"]), round(box["y"] + y * box["height"])) for x, y in stroke]
        pointer.move_to_location(*places[0]).pointer_down()
        for place in [*places[1:-1:2], places[-1]]:  # A mouse tells of some of the places that it passes.
            pointer.move_to_location(*place)
        pointer.pointer_up()
    actions.perform()
    page.driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")


def error_shown(page: Page) -> float:
    return float(page.texts("#error")[0].removeprefix("Squared error per pixel: "))


def as_torch_computes(networks: DigitNetworks, images: torch.Tensor) -> list[torch.Tensor]:
    """Both hidden layers, probabilities, code, and redrawn images."""
    from rbm.fine_tuning import Autoencoder, Recogniser, stack
    from rbm.pretraining import WIDTHS

    state = stack(None, (64, *WIDTHS), 1)
    seeing, coding = Recogniser(state), Autoencoder(state)
    load_weights(networks.of(DemoRole.RECOGNISER), seeing)
    load_weights(networks.of(DemoRole.AUTOENCODER), coding)
    first = torch.sigmoid(seeing.layers[0](images))
    second = torch.sigmoid(seeing.layers[1](first))
    code = images
    for layer in coding.encoder:
        code = torch.sigmoid(layer(code))
    return [first, second, seeing(images).softmax(1), code, coding(images)]


def touch(page: Page, strokes: list[list[Point]]) -> None:
    box = page.driver.execute_script("return document.getElementById('pad').getBoundingClientRect().toJSON()")

    def send(kind: str, *places: Point) -> None:
        points = [{"x": box["left"] + x * box["width"], "y": box["top"] + y * box["height"]} for x, y in places]
        page.driver.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    for stroke in strokes:
        send("touchStart", stroke[0])
        for place in stroke[1:]:
            send("touchMove", place)
        send("touchEnd")


@pytest.fixture(scope="class")
def page(networks: DigitNetworks, opened: Callable[[Follower], tuple[Page, Demo]]) -> Page:
    tuned = (DemoRole.RECOGNISER, DemoRole.AUTOENCODER)
    shown, _ = opened(Follower(None, None, {role: networks.of(role) for role in tuned}))
    shown.wait(lambda: shown.texts("#encoding-weights")[0].startswith("by weights of step"), "the weights")
    return shown


class TestTrained:
    """The page with trained networks, opened once."""

    def test_held_out_digits_drawn_with_the_mouse_are_recognised_and_redrawn(
        self, page: Page, digits: tuple[np.ndarray, np.ndarray]
    ) -> None:
        images, numbers = digits
        found, errors = [], []
        for digit in range(10):
            draw(page, strokes_of(images[np.flatnonzero(numbers == digit)[0]].reshape(8, 8)))
            found.append(page.texts("#digit")[0])
            errors.append(error_shown(page))
        right = sum(shown == str(digit) for digit, shown in enumerate(found))
        assert right >= LEAST_OF_TEN, found
        assert np.mean(errors) <= MOST_ERROR, errors
        assert page.errors() == []

    def test_the_page_computes_what_torch_computes(
        self, page: Page, networks: DigitNetworks, digits: tuple[np.ndarray, np.ndarray]
    ) -> None:
        images = torch.from_numpy(digits[0])
        body = """
            const roles = ["recogniser", "autoencoder"];
            const [recogniser, autoencoder] = await Promise.all(roles.map(weights.readWeights));
            const seeing = new networks.Recogniser(recogniser.tensors);
            const coding = new networks.Autoencoder(autoencoder.tensors);
            return given[0].map((image) => {
                const { hidden, probabilities } = seeing.recognise(image);
                const code = coding.encode(image);
                return [...hidden, probabilities, code, coding.decode(code)].map((values) => [...values]);
            });
        """
        told = [torch.tensor(column) for column in zip(*compute(page, body, digits[0].tolist()), strict=True)]
        expected = [tensor.detach() for tensor in as_torch_computes(networks, images)]
        assert [tuple(t.shape[1:]) for t in told] == [(256,), (128,), (10,), (30,), (64,)]
        for mine, theirs in zip(told, expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)

    def test_strokes_of_all_held_out_digits_are_seen_as_digits_of_the_set(
        self, page: Page, digits: tuple[np.ndarray, np.ndarray]
    ) -> None:
        images, numbers = digits
        body = """
            const { tensors } = await weights.readWeights("recogniser");
            const network = new networks.Recogniser(tensors);
            const images = given[0].map((strokes) => preprocess.seen(strokes));
            return images.map((image) => [image, [...network.recognise(image).probabilities]]);
        """
        drawn = [strokes_of(image.reshape(8, 8)) for image in images]
        answers = compute(page, body, drawn)
        seen = np.array([image for image, _ in answers])
        assert np.all(seen * 16 == np.round(seen * 16))
        assert abs(seen.mean() - images.mean()) < 0.02
        assert np.all(seen[:, :8].max(1) > 0)
        assert np.all(seen[:, -8:].max(1) > 0)
        right = np.argmax([probabilities for _, probabilities in answers], 1) == numbers
        assert right.mean() >= LEAST_OF_ALL, right.mean()

    def test_slanted_and_uneven_drawings_are_mostly_recognised(self, page: Page) -> None:
        body = """
            const { tensors } = await weights.readWeights("recogniser");
            const network = new networks.Recogniser(tensors);
            return given[0].map((strokes) => [...network.recognise(preprocess.seen(strokes)).probabilities]);
        """
        drawings = slanted_digits()
        answers = compute(page, body, [strokes for _, strokes in drawings])
        found = np.argmax(answers, 1)
        right = sum(digit == said for (digit, _), said in zip(drawings, found, strict=True))
        assert right >= LEAST_SLANTED, (right, found)

    def test_a_long_stroke_costs_at_its_end_what_it_costs_at_its_beginning(self, page: Page) -> None:
        script = """
            const pad = document.getElementById("pad");
            const box = pad.getBoundingClientRect();
            const send = (kind, share) => pad.dispatchEvent(new PointerEvent(kind, {
                pointerId: 1, button: 0, isPrimary: true, cancelable: true,
                clientX: box.left + box.width * (0.5 + 0.4 * Math.cos(40 * share)),
                clientY: box.top + box.height * (0.5 + 0.4 * Math.sin(31 * share)),
            }));
            const draw = CanvasRenderingContext2D.prototype.lineTo;
            let lines = 0;
            const counted = function (...place) { lines++; return draw.apply(this, place); };
            CanvasRenderingContext2D.prototype.lineTo = counted;
            send("pointerdown", 0);
            lines = 0;
            const moves = 4000;
            for (let i = 1; i <= moves; i++) send("pointermove", i / moves);
            send("pointerup", 1);
            CanvasRenderingContext2D.prototype.lineTo = draw;
            return lines / moves;
        """
        page.driver.execute_script("document.getElementById('clear').click()")
        assert page.driver.execute_script(script) <= 2

    def test_a_dot_and_a_line_that_lies_are_called_no_digit(self, page: Page) -> None:
        for strokes in ([[(0.5, 0.5), (0.51, 0.5), (0.5, 0.5)]], [[(0.2, 0.5), (0.5, 0.51), (0.8, 0.5)]]):
            draw(page, strokes)
            page.wait(lambda: page.texts("#digit") == ["–"], "no digit")
            assert page.texts("#certainty") == ["not a digit: draw one over it"]
        draw(page, [[(0.5, 0.2), (0.5, 0.5), (0.5, 0.8)]])
        page.wait(lambda: page.texts("#digit") != ["–"], "a digit: it may be a 1")

    def test_what_is_seen_depends_neither_on_the_drawings_size_nor_on_its_place(self, page: Page) -> None:
        body = """
            const seven = [[[0.26, 0.12], [0.74, 0.12], [0.44, 0.88]]];
            const small = seven.map((stroke) => stroke.map(([x, y]) => [0.6 + x / 4, 0.1 + y / 4]));
            return [seven, small, [[[0.5, 0.5]]], []].map((strokes) => preprocess.seen(strokes));
        """
        whole, small, dot, nothing = compute(page, body)
        assert whole == small
        assert sum(dot) > 0
        assert nothing is None

    def test_a_slider_changes_a_number_and_the_decoder_redraws(self, page: Page) -> None:
        def redrawn() -> str:
            return str(page.driver.execute_script("return document.getElementById('redrawn').toDataURL()"))

        before, slider = redrawn(), page.driver.find_elements("css selector", ".unit input")[4]
        assert slider.get_attribute("aria-label") == "Number 5 of 30"
        slider.send_keys(Keys.END)
        assert page.texts("#how")[0].startswith("Changed by hand")
        body = """
            const { tensors } = await weights.readWeights("autoencoder");
            const code = [...document.querySelectorAll(".unit input")].map(({ value }) => Number(value));
            const pixels = document.getElementById("redrawn").getContext("2d").getImageData(0, 0, 8, 8).data;
            const shades = [...pixels].filter((_, at) => at % 4 === 0);
            return [code[4], [...new networks.Autoencoder(tensors).decode(code)], shades];
        """
        value, decoded, shades = compute(page, body)
        assert value == 1
        assert np.corrcoef(decoded, shades)[0, 1] < -0.999  # Ink is dark.
        assert redrawn() != before
        page.click("#restore")
        assert redrawn() == before

    def test_by_keyboard_an_example_is_shown_and_cleared(self, page: Page) -> None:
        page.write("#example", Keys.ENTER)
        page.wait(lambda: page.texts("#digit") == ["4"], "the next example")
        page.wait(lambda: page.texts("#spoken")[0].startswith("Recognised: 4"), "what screen readers say")
        page.write("#clear", Keys.ENTER)
        page.wait(lambda: page.texts("#digit") == ["–"], "the empty pad")
        assert page.attributes("#pad", "aria-label") == {"Drawing: empty"}
        unnamed = "canvas:not([aria-label]), input:not([aria-label])"
        assert page.texts(unnamed) == []

    def test_on_a_phone_a_finger_draws_and_nothing_scrolls_sideways(
        self, page: Page, digits: tuple[np.ndarray, np.ndarray]
    ) -> None:
        with on_a_phone(page.driver):
            page.open(token=None)
            page.wait(lambda: page.texts("#recognition-weights")[0].startswith("by weights"), "the weights")
            page.driver.execute_script("document.getElementById('clear').click()")
            images, numbers = digits
            touch(page, strokes_of(images[np.flatnonzero(numbers == 0)[0]].reshape(8, 8)))
            page.wait(lambda: page.texts("#digit") == ["0"], "the digit")
            widths = "return [document.documentElement.scrollWidth, innerWidth, scrollY]"
            assert page.driver.execute_script(widths) == [390, 390, 0]

    def test_nothing_is_asked_of_another_host(self, page: Page) -> None:
        asked = page.driver.execute_script(
            "return performance.getEntriesByType('resource').map(({ name }) => name)"
        )
        assert {url.split("/", 3)[2] for url in asked} == {f"127.0.0.1:{page.server.port}"}
        own = [path for path in FOLDER.rglob("*") if path.suffix in {".html", ".css", ".js"}]
        assert not [path.name for path in own if re.search(r"https?://|innerHTML|\seval\(", path.read_text())]

    def test_a_server_that_is_away_is_told_and_drawing_goes_on(self, page: Page) -> None:
        page.server.stop()
        page.wait(lambda: page.shows("#banner"), "the banner")
        assert "start “oakum demo digits” again" in page.texts("#banner")[0]
        assert page.texts("#liveness") == ["Offline"]
        page.click("#clear")
        page.wait(lambda: page.texts("#digit") == ["–"], "the empty pad")
        page.click("#example")
        page.wait(lambda: page.texts("#digit")[0].isdigit(), "the next example")
        page.server.start()
        page.wait(lambda: not page.shows("#banner"), "the end of the outage")


def test_the_page_gets_better_while_the_networks_train_and_polling_costs_nothing(
    networks: DigitNetworks, opened: Callable[[Follower], tuple[Page, Demo]], tmp_path: Path
) -> None:
    new = DigitNetworks(tmp_path)
    new.of(DemoRole.STACK).symlink_to(networks.of(DemoRole.STACK))
    new.save(DemoRole.RECOGNISER, next(new.steps(DemoRole.RECOGNISER)))
    page, demo = opened(Follower(None, None, {DemoRole.RECOGNISER: new.of(DemoRole.RECOGNISER)}))
    page.wait(lambda: page.texts("#recognition-weights") == ["by weights of step 1"], "the first weights")
    certain = page.texts("#probabilities .most .value")[0]
    unchanged = len(demo.answers)
    page.wait(lambda: demo.answers[unchanged:].count(("/state", 304)) >= 2, "two polls of what has not changed")
    assert not [path for path, _ in demo.answers[unchanged:] if path != "/state"]
    shutil.copytree(networks.of(DemoRole.RECOGNISER), new.of(DemoRole.RECOGNISER), dirs_exist_ok=True)
    demo.follower.turn()
    page.wait(lambda: page.texts("#recognition-weights") == ["by weights of step 1,800"], "the last weights")
    assert page.texts("#digit") == ["3"]
    after = page.texts("#probabilities .most .value")[0]
    assert float(after[:-2]) > max(float(certain[:-2]), 90)
    assert page.texts("#encoding-weights")[0].endswith("with --autoencoder FOLDER, too.")


def test_the_stack_redraws_before_the_autoencoder_has_weights(
    networks: DigitNetworks, opened: Callable[[Follower], tuple[Page, Demo]]
) -> None:
    page, _ = opened(Follower(None, None, {DemoRole.STACK: networks.of(DemoRole.STACK)}))
    page.wait(
        lambda: page.texts("#encoding-weights")[0].endswith("of the stack, before fine-tuning"), "its weights"
    )
    assert error_shown(page) < 0.12
    assert len(page.texts(".unit")) == 30


def test_a_service_that_is_away_is_told_with_what_to_do(
    opened: Callable[[Follower], tuple[Page, Demo]], unused_address: str
) -> None:
    client = OakumClient(unused_address, "token")
    page, _ = opened(Follower(client, TrainerChain(read_specs(EXAMPLES, 1))))
    page.wait(lambda: page.shows("#banner"), "the banner")
    assert page.texts("#banner")[0].startswith(
        f"The Oakum service is away: No service answers at {unused_address}"
    )
    assert page.texts("#recognition-weights") == ["No weights yet: the Oakum service is away."]


@pytest.fixture
def unused_address() -> str:
    server = Server()
    server.stop()
    return server.url.rstrip("/")


def test_the_state_has_no_value_that_json_lacks(networks: DigitNetworks) -> None:
    follower = Follower(None, None, {DemoRole.STACK: networks.of(DemoRole.STACK)})
    follower.turn()
    state = json.loads(follower.known.state, parse_constant=pytest.fail)
    assert state["networks"]["stack"]["step"] == 72
