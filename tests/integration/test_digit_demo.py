"""`oakum demo digits` through a real service: it submits the trainers, and serves weights as these train."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import httpx

from running_service import EXAMPLES, RunningService
from waiting import DEADLINE_S, wait_until
from warm_processes import start_warm


def with_fewer_epochs(folder: Path) -> Path:
    """A copy of the examples in `folder`, whose three layers are pretrained for one epoch each in place of 15, and
    whose trainers have a node each."""
    shutil.copytree(EXAMPLES, folder)
    spec = folder / "rbm-digits.yaml"
    text = spec.read_text(encoding="utf-8")
    assert "epochs: 45" in text
    spec.write_text(text.replace("epochs: 45", "epochs: 3"), encoding="utf-8")
    for spec in folder.glob("rbm-*.yaml"):
        text = spec.read_text(encoding="utf-8").replace("max_nodes: 2\n", "")
        spec.write_text(f"{text}max_nodes: 1\n", encoding="utf-8")
    return folder


def test_a_running_service_trains_what_the_page_shows(shared_service: RunningService, tmp_path: Path) -> None:
    client = shared_service.client()
    environment = os.environ | {"OAKUM_URL": client.address.url, "OAKUM_TOKEN": str(client.address.token)}
    output = tmp_path / "output"
    examples = with_fewer_epochs(tmp_path / "examples")
    arguments = ["--examples", str(examples), "--epochs", "10", "--port", "0", "--no-browser", "--json"]
    with output.open("wb") as stream:
        demo = start_warm("oakum", "demo", "digits", *arguments, environment=environment, output=stream)
    try:
        url = json.loads(wait_until("the page's address", lambda: output.read_text() or None))["url"]
        with httpx.Client(base_url=url, timeout=DEADLINE_S) as page:
            assert "Handwritten digits" in page.get("/").text

            def trained() -> Any:
                state = page.get("/state").json()
                assert (state["fault"], state["faults"]) == (None, {})
                ended = [told["name"] for told in state["trainers"] if told["status"] == "finished"]
                whole = state["networks"].get("recogniser", {}).get("step") == 300
                return state if len(ended) == 3 and whole and len(state["networks"]) == 3 else None

            state = wait_until("all three have trained", trained)
            assert state is not None
            accuracy = next(told for told in state["trainers"] if told["role"] == "recogniser")["metrics"][
                "accuracy"
            ]
            assert accuracy > 0.9
            tensors = page.get("/weights/autoencoder").json()["tensors"]
            assert tensors["encoder.2.weight"]["shape"] == [30, 128]
        assert {client.trainer(told["name"]).spec.epochs for told in state["trainers"][1:]} == {10}
        demo.send_signal(signal.SIGINT)
        assert demo.wait(timeout=DEADLINE_S) == 0
    finally:
        if demo.poll() is None:
            demo.kill()
