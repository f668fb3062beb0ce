"""POST /v1/trainers/read: the text of a spec becomes fields, whatever it is."""

from __future__ import annotations

from api_under_test import ApiUnderTest
from cells import each


def read(api: ApiUnderTest, text: str) -> tuple[int, object]:
    answer = api.user.post("/v1/trainers/read", json={"text": text})
    return answer.status_code, answer.json().get("spec", answer.json().get("detail"))


@each(
    ("text", "spec"),
    [
        ("name: digits\nepochs: 3\n", {"name": "digits", "epochs": 3}),
        ('{"name": "digits", "curve": [[1, 100]]}', {"name": "digits", "curve": [[1, 100]]}),
        ("deadline: 2027-01-01T00:00:00+00:00\n", {"deadline": "2027-01-01T00:00:00+00:00"}),
        ("{}", {}),
    ],
)
def test_yaml_and_json_become_fields(api: ApiUnderTest, text: str, spec: dict[str, object]) -> None:
    assert read(api, text) == (200, spec)


@each(
    "text",
    [
        "",
        "- a\n",
        "name: [",
        "a: &x 1\nb: *x\n",
        "name: a\nname: b\n",
        "\tname: a",
        "x: .nan\n",
        "x: !!binary gIA=\n",
        "x: 2026-13-99",
        "!!python/object/apply:os.system [ls]",
        "[" * 5000,
    ],
)
def test_what_is_no_spec_is_told(api: ApiUnderTest, text: str) -> None:
    status, detail = read(api, text)
    assert (status, str(detail).startswith("the spec: ")) == (400, True), detail


@each(
    ("text", "lines"),
    [
        (
            "name: a\n\nbatch: 7\ncheckpoint:\n  evry_s: 9\n",
            {"name": 1, "batch": 3, "checkpoint": 4, "checkpoint.evry_s": 5},
        ),
        ('{"name": "a",\n "notify": [{"email":\n "a@b"}]}', {"name": 1, "notify": 2, "notify.0.email": 2}),
        ("curve: [[1, 100],\n [2, 190]]\n", {"curve": 1}),
        ("a: {b: {c: {d: {e: 1}}}}", {"a": 1, "a.b": 1, "a.b.c": 1, "a.b.c.d": 1}),
    ],
)
def test_each_field_is_told_with_its_line(api: ApiUnderTest, text: str, lines: dict[str, int]) -> None:
    answer = api.user.post("/v1/trainers/read", json={"text": text})
    assert answer.json()["lines"] == lines
