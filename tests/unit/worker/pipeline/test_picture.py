"""A schedule can be read off its drawing."""

from xml.etree import ElementTree

from oakum_worker.parallel.pipeline.operations import Schedule
from oakum_worker.parallel.pipeline.picture import draw_svg, draw_text
from oakum_worker.parallel.pipeline.schedules import build
from oakum_worker.parallel.pipeline.simulation import simulate

SVG = "{http://www.w3.org/2000/svg}"


def lines(schedule: Schedule, forward: float = 1.0, backward: float = 1.0) -> list[str]:
    return draw_text(schedule, simulate(schedule, forward, backward), colours=False).plain.splitlines()


def test_a_row_shows_a_workers_passes_in_their_slots() -> None:
    assert lines(build("1f1b", num_workers=2, num_micro_batches=2)) == [
        "0 |F0|F1|·  B0|·  B1|",
        "1 |·  F0|B0|F1|B1|",
    ]


def test_a_longer_pass_takes_more_columns() -> None:
    schedule = build("gpipe", num_workers=1, num_micro_batches=2)
    assert lines(schedule, 1.0, 2.0) == ["0 |F0|F1|B0   |B1   |"]
    assert lines(schedule, 1.0, 1.5) == ["0 |F0 |F1 |B0   |B1   |"]


def test_pipes_and_doubled_passes_are_told_apart_without_colours() -> None:
    schedule = build("chimera", num_workers=2, num_micro_batches=4, scheme="forward-doubling")
    assert lines(schedule, 1.0, 2.0) == [
        "0 |F0-1a|F2-3b|B2b  |B0a  |B3b  |B1a  |",
        "1 |F2-3b|F0-1a|B0a  |B2b  |B1a  |B3b  |",
    ]


def test_a_workers_second_stage_of_a_pipe_is_marked() -> None:
    schedule = build("interleaved", num_workers=1, num_micro_batches=1, stages_per_worker=2)
    assert lines(schedule) == ["0 |F0 |F0'|B0'|B0 |"]


def test_times_that_share_no_slot_are_still_drawn() -> None:
    row = lines(build("gpipe", num_workers=1, num_micro_batches=2), 1.0, 1.37)[0]
    assert [cell.strip() for cell in row.strip("|").split("|")] == ["0", "F0", "F1", "B0", "B1"]


def test_forward_and_backward_have_different_colours_in_each_pipe() -> None:
    schedule = build("chimera", num_workers=2, num_micro_batches=2)
    styles = {str(span.style) for span in draw_text(schedule, simulate(schedule)).spans} - {"dim"}
    assert styles == {"bold blue", "blue reverse", "bold dark_orange", "dark_orange reverse"}


def test_the_svg_has_a_shape_for_every_pass_and_says_what_it_is() -> None:
    schedule = build("chimera", num_workers=4, num_micro_batches=4)
    root = ElementTree.fromstring(draw_svg(schedule, simulate(schedule, 1.0, 2.0), unit_px=10))
    told = [title.text for group in root.findall(f"{SVG}g") for title in group.findall(f"{SVG}title")]
    assert len(told) == 4 * 8
    assert "BACKWARD of micro-batch 1 on stage 0 of pipe 0, 14 to 16" in told
    assert len(root.findall(f"{SVG}path")) == 4 * 2
    first = root.find(f"{SVG}g/{SVG}rect")
    assert first is not None
    assert (first.get("x"), first.get("width")) == ("74.0", "10.0")


def test_the_svg_refers_to_nothing_outside_itself() -> None:
    schedule = build("1f1b", num_workers=2, num_micro_batches=2)
    document = draw_svg(schedule, simulate(schedule)).replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert "http" not in document
    assert "href" not in document
    assert "url(" not in document
