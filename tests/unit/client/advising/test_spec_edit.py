"""Advice written into a spec leaves the user's text as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from oakum_client.cli.advising.spec_edit import difference, replace_spec, with_advice
from oakum_worker.errors import SpecError
from oakum_worker.spec import read_spec

TEXT = """\
# My trainer.
name: digits   # a name
entrypoint: a.b:c
global_batch: 128
epochs: 3
max_nodes: 4   # as Ada said

curve: [[1, 10], [2, 20]]
checkpoint:
  every_s: 20  # often
# the end
"""


def test_a_value_changes_in_its_place_and_all_else_stays() -> None:
    after = with_advice(TEXT, {"max_nodes": 9}, {"max_nodes": "80 % efficient"})
    assert after == TEXT.replace("max_nodes: 4 ", "# oakum advise: 80 % efficient\nmax_nodes: 9 ")


def test_a_new_field_comes_after_the_bounds() -> None:
    after = with_advice(TEXT, {"micro_batch": 64}, {})
    assert after == TEXT.replace("# as Ada said\n", "# as Ada said\nmicro_batch: 64\n")


def test_block_lists_are_replaced_whole() -> None:
    text = TEXT.replace("curve: [[1, 10], [2, 20]]\n", "curve:   # mine\n  - [1, 10]\n  - [2, 20]\n")
    after = with_advice(text, {"curve": [[1, 5.0]], "micro_batch": 2}, {})
    assert yaml.safe_load(after) == yaml.safe_load(text) | {"curve": [[1, 5.0]], "micro_batch": 2}
    assert "# often" in after


def test_advice_given_twice_is_written_once() -> None:
    fields, reasons = {"max_nodes": 9, "micro_batch": 2}, {"max_nodes": "x", "micro_batch": "y"}
    once = with_advice(TEXT, fields, reasons, ("a note",))
    assert with_advice(once, fields, reasons, ("a note",)) == once
    assert once.endswith("# the end\n# oakum advise, note: a note\n")


def test_advice_that_the_spec_follows_already_keeps_its_comments() -> None:
    fields, reasons = {"max_nodes": 9, "micro_batch": 2}, {"max_nodes": "x", "micro_batch": "y"}
    once = with_advice(TEXT, fields, reasons, ("a note",))
    assert with_advice(once, {}, {}, ("a note",)) == once
    other = with_advice(once, {"max_nodes": 5}, {"max_nodes": "z"})
    assert other == once.replace("advise: x\nmax_nodes: 9", "advise: z\nmax_nodes: 5").replace(
        "# oakum advise, note: a note\n", ""
    )


def test_what_is_no_block_mapping_is_refused() -> None:
    with pytest.raises(SpecError, match="by hand"):
        with_advice('{"name": "a"}', {"max_nodes": 2}, {})


def test_a_file_is_replaced_only_by_a_valid_spec(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(TEXT)
    path.chmod(0o640)
    with pytest.raises(SpecError):
        replace_spec(path, TEXT.replace("epochs: 3", "epochs: 0"))
    assert path.read_text() == TEXT
    replace_spec(path, with_advice(TEXT, {"max_nodes": 9}, {}))
    assert read_spec(path).max_nodes == 9
    assert path.stat().st_mode & 0o777 == 0o640
    assert [one.name for one in tmp_path.iterdir()] == ["spec.yaml"]


def test_the_difference_shows_what_changes() -> None:
    assert "+max_nodes: 9" in difference(TEXT, TEXT.replace("max_nodes: 4", "max_nodes: 9"), Path("a.yaml"))
    assert difference(TEXT, TEXT, Path("a.yaml")) == ""
