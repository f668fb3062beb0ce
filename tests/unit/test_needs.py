"""A test that lacks something is skipped, or fails where what it lacks is required."""

from __future__ import annotations

import pytest

import needs


@pytest.mark.parametrize(
    ("required", "reason", "outcome"),
    [
        ("", "needs slurm, which is not installed", "skipped"),
        ("postgres,slurm", "needs slurm, which is not installed", "failed"),
        ("postgres", "needs slurm, which is not installed", "skipped"),
        ("all", "needs slurm, which is not installed", "failed"),
        ("all", "could not import 'sklearn'", "failed"),
        ("all", "needs cuda: 2 devices", "skipped"),
        ("all,cuda", "needs cuda: 2 devices", "failed"),
    ],
)
def test_a_skip_fails_where_what_is_lacking_is_required(
    monkeypatch: pytest.MonkeyPatch, required: str, reason: str, outcome: str
) -> None:
    monkeypatch.setenv(needs.VARIABLE, required)
    report = pytest.TestReport(
        "test_it", ("test_it.py", 1, "test_it"), {}, "skipped", ("test_it.py", 1, f"Skipped: {reason}"), "setup"
    )
    needs.fail_if_required(report)
    assert report.outcome == outcome
    assert outcome == "skipped" or reason in report.longreprtext


def test_an_unknown_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(needs.VARIABLE, "postgres,slrum")
    with pytest.raises(pytest.UsageError, match="names slrum; it may name accounting, accounts, all, browser"):
        needs.required()
