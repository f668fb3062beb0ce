"""Which fragments a snapshot may lack because they are being submitted."""

from __future__ import annotations

from oakum_service.control.submissions import Submissions


def test_who_watches_knows_each_submission_that_is_under_way_meanwhile() -> None:
    submissions = Submissions()
    submissions.begin(["over", "before"])
    submissions.end(["over"])
    with submissions.watched() as seen:
        submissions.begin(["meanwhile"])
        submissions.end(["before", "meanwhile"])
        assert set(seen) == {"before", "meanwhile"}
    submissions.begin(["after"])
    assert "after" not in seen
    assert submissions.under_way() == {"after"}
