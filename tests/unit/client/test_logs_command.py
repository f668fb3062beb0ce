"""`oakum logs`: a trainer's log, once or until the trainer ends."""

from __future__ import annotations

from answering_service import Output, Service, trainer
from oakum_client.cli import load_commands
from oakum_client.cli.app import run
from oakum_client.cli.logs import new_lines

load_commands()


def test_logs_are_printed_as_they_are(service: Service, output: Output) -> None:
    assert run(["logs", "digits", "--tail", "5"]) == 0
    assert output() == "n1 | step 1\nn2 | [bold]ready[/bold]\n"
    assert service.requests == [("GET", "/v1/trainers/digits/logs?tail=5")]


def test_followed_logs_print_each_line_once_until_the_end(service: Service, output: Output) -> None:
    path = "/v1/trainers/digits/logs"
    service.documents["GET", path] = [{"lines": ["n1 | a"]}, {"lines": ["n1 | a", "n1 | b"]}]
    service.documents["GET", "/v1/trainers/digits"] = [trainer(), trainer(state="finished")]
    assert run(["logs", "digits", "--follow"]) == 0
    assert output() == "n1 | a\nn1 | b\n"


def test_lines_of_several_nodes_move_on_their_own() -> None:
    seen = ["n1 | a", "n1 | b", "n2 | x"]
    assert new_lines(seen, ["n1 | b", "n1 | c", "n2 | x", "n2 | x"]) == ["n1 | c", "n2 | x"]
    assert new_lines(seen, seen) == []
    assert new_lines([], ["n3 | first"]) == ["n3 | first"]
