"""A real service with a JSON log: each line parses, and tells which trainer, fragment, plan and request it is
about; and what a scrape and a probe of the same service find."""

from __future__ import annotations

import json
from typing import Any

import httpx

from running_service import RunningService, small_spec, wait_for_size
from waiting import wait_until


def test_each_line_of_a_service_s_log_is_json_and_says_what_it_is_about(service: RunningService) -> None:
    service.configure(OAKUM_LOG_FORMAT="json", OAKUM_LOCAL_NODES="1")
    service.start()
    found = json.loads((service.data_dir / "client.json").read_text(encoding="utf-8"))
    headers = {"Authorization": f"Bearer {found['token']}", "X-Request-ID": "request-of-the-test"}
    spec = small_spec("elastic", epochs=100_000, max_nodes=1).model_dump(mode="json", exclude_unset=True)
    trainer = httpx.post(f"{found['url']}/v1/trainers", json=spec, headers=headers).raise_for_status().json()["id"]
    with service.client() as client:
        wait_for_size(client, "elastic", 1)
    wait_until("the service is ready", lambda: httpx.get(f"{found['url']}/readyz").status_code == 200)
    trains = 'oakum_fragments{phase="training"} 1.0'
    wait_until("its fragment is counted", lambda: trains in httpx.get(f"{found['url']}/metrics").text)
    service.interrupt()

    text = service.log_file.read_text(encoding="utf-8")
    lines: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    assert found["token"] not in text
    submitted = [line for line in lines if line.get("request") == "request-of-the-test"]
    assert [(line["event"], line["trainer"]) for line in submitted] == [("trainer.submitted", trainer)]
    launched = [line for line in lines if line.get("event") == "fragment.launched"]
    assert {line["trainer"] for line in launched} == {trainer}
    assert all(int(line["plan"]) > 0 for line in launched)
    formed = {line["fragment"] for line in lines if line.get("event") == "generation.formed"}
    assert formed
    assert formed <= {line["fragment"] for line in launched}
    assert any(line["logger"] == "oakum.serve" and "serves http" in line["message"] for line in lines)
