"""Idle logs, rule by rule."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from cells import each
from oakum_solver.errors import LogError
from oakum_solver.logs.holes import HoleLog
from oakum_solver.logs.idle import read_idle_log, write_idle_log
from oakum_solver.logs.parts import whole_idle_s

HEADER = "node,start_s,end_s\n"


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "idle.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def holes(log: HoleLog) -> list[tuple[str, float, float]]:
    return [
        (log.nodes[node], start_s, end_s)
        for node, start_s, end_s in zip(log.node, log.start_s.tolist(), log.end_s.tolist(), strict=True)
    ]


def test_rows_in_any_order_become_holes_from_time_0_on(tmp_path: Path) -> None:
    log = read_idle_log(written(tmp_path, HEADER + "n2,1050.5,1060\nn1,1100,1e4\nn1,1000,1020\n"))
    assert holes(log) == [("n1", 0.0, 20.0), ("n2", 50.5, 60.0), ("n1", 100.0, 9000.0)]
    assert (log.name, log.nodes, log.duration_s, log.cut_s) == ("idle.csv", ("n1", "n2"), 9000.0, 0.0)
    assert (log.notes, log.node.dtype) == ((), np.int32)


def test_a_spreadsheets_byte_order_mark_line_ends_quotes_and_blank_lines_are_read(tmp_path: Path) -> None:
    text = b'\xef\xbb\xbfnode, start_s ,end_s\r\n\r\n"rack 1, node 2",0,10\r\n n\xc3\xb6 , 5 , 6 \r\n'
    assert holes(read_idle_log(written(tmp_path, text))) == [("rack 1, node 2", 0.0, 10.0), ("nö", 5.0, 6.0)]


def test_holes_of_a_node_that_touch_are_one(tmp_path: Path) -> None:
    log = read_idle_log(written(tmp_path, HEADER + "a,20,30\na,0,10\nb,10,20\na,10,20\n"))
    assert holes(log) == [("a", 0.0, 30.0), ("b", 10.0, 20.0)]
    assert log.notes == ("holes joined to the one that ends on their node as they begin: 2",)


def test_rows_without_length_are_skipped_and_counted(tmp_path: Path) -> None:
    log = read_idle_log(written(tmp_path, HEADER + "a,5,5\na,7,10\nb,8,8\n"))
    assert (holes(log), log.nodes) == ([("a", 0.0, 3.0)], ("a",))
    assert log.notes == ("rows without length skipped: 2",)


def test_a_row_of_a_folded_list_counts_for_each_of_its_nodes(tmp_path: Path) -> None:
    log = read_idle_log(written(tmp_path, HEADER + '"n[1-2],x",0,10\nn[3],0,5\nrack[a],0,5\n'))
    assert log.nodes == ("n1", "n2", "n3", "rack[a]", "x")
    assert log.notes == ("rows of a list of nodes, read as a row for each node: 1",)


def test_a_hole_within_another_node_s_is_no_overlap(tmp_path: Path) -> None:
    assert read_idle_log(written(tmp_path, HEADER + "a,0,10\nb,2,5\n")).num_holes == 2


@each(
    ("text", "line", "cause"),
    [
        ("", 1, "the header '': expected 'node,start_s,end_s'"),
        ("n1,0,10\n", 1, "the header 'n1,0,10'"),
        ("node,end_s,start_s\n", 1, "the header"),
        (HEADER + "a,0,1\na,2\n", 3, "2 fields: expected 3, node,start_s,end_s"),
        (HEADER + "a,0,1,2\n", 2, "4 fields: expected 3"),
        (HEADER + "a,zero,1\n", 2, "could not convert string to float: 'zero'"),
        (HEADER + "a,0,\n", 2, "could not convert string to float: ''"),
        (HEADER + "a,nan,1\n", 2, "nan: expected seconds"),
        (HEADER + "a,0,inf\n", 2, "inf: expected seconds"),
        (HEADER + "a,0,1e13\n", 2, "10000000000000.0: expected seconds, within 1e+12 of 0"),
        (HEADER + ",0,1\n", 2, "the node has no name"),
        (HEADER + "n[1-99999],0,1\n", 2, "names 99,999 nodes: expected at most 65,536"),
        (HEADER + "a,0,1\n\na,9,8\n", 4, "the hole of a ends at 8.0 s, before it starts at 9.0 s"),
        (HEADER + 'a,0,1\n"a,0,1\n', 3, "unexpected end of data"),
    ],
)
def test_a_malformed_line_is_named_with_file_line_and_cause(
    tmp_path: Path, text: str, line: int, cause: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(LogError) as caught:
        read_idle_log(path)
    assert str(caught.value).startswith(f"{path}, line {line}: ")
    assert cause in str(caught.value)


def test_overlapping_holes_of_a_node_are_named_with_both_lines(tmp_path: Path) -> None:
    path = written(tmp_path, HEADER + "a,1007,1010\nb,1000,1020\na,1000,1008\n")
    with pytest.raises(LogError) as caught:
        read_idle_log(path)
    assert str(caught.value) == (
        f"{path}, line 2: the hole of a starts at 1007.0 s, while that of line 4 lasts until 1008.0 s: "
        "expected one hole of a node at a time"
    )


def test_a_line_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"idle\.csv, line 3: it is no UTF-8 text"):
        read_idle_log(written(tmp_path, HEADER.encode() + b"a,0,1\nn\xf6,0,1\n"))


@pytest.mark.parametrize("rows", ["", "\n\n", "a,1,1\n"])
def test_a_log_without_any_hole_is_refused(tmp_path: Path, rows: str) -> None:
    with pytest.raises(LogError, match="no hole in it"):
        read_idle_log(written(tmp_path, HEADER + rows))


def test_a_truncated_archive_is_a_log_error(tmp_path: Path) -> None:
    path = tmp_path / "idle.csv.gz"
    path.write_bytes(gzip.compress((HEADER + "".join(f"n{i},0,{i}.5\n" for i in range(999))).encode())[:-20])
    with pytest.raises(LogError, match="it is cut off"):
        read_idle_log(path)


def test_a_missing_file_is_a_log_error(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="absent"):
        read_idle_log(tmp_path / "absent.csv")


def test_a_folder_that_is_not_there_cannot_be_written_to(tmp_path: Path) -> None:
    log = read_idle_log(written(tmp_path, HEADER + "a,0,1\n"))
    with pytest.raises(LogError, match="absent"):
        write_idle_log(tmp_path / "absent" / "idle.csv", log)


SLOTS = "node,start_s,end_s,slot,slots\n"


def test_rows_of_slots_become_holes_of_slots_that_stand_on_their_nodes(tmp_path: Path) -> None:
    log = read_idle_log(written(tmp_path, SLOTS + "n2,0,30,3,4\nn1,0,100,0,2\nn1,40,90,1,2\n"))
    assert holes(log) == [("n1:0", 0.0, 100.0), ("n2:3", 0.0, 30.0), ("n1:1", 40.0, 90.0)]
    assert log.parts is not None
    assert [log.parts.names[host] for host in log.parts.host] == ["n1", "n1", "n2"]
    assert log.parts.slots.tolist() == [2, 4]


def test_a_node_is_idle_as_a_whole_while_all_of_its_slots_are(tmp_path: Path) -> None:
    text = SLOTS + "n1,0,100,0,2\nn1,40,90,1,2\nn1,95,120,1,2\nn2,0,500,0,4\nn2,0,500,1,4\nn3,7,9,0,1\n"
    log = read_idle_log(written(tmp_path, text))
    assert whole_idle_s(log) == 2 * (50.0 + 5.0) + 2.0
    assert whole_idle_s(log.clipped(50.0, 60.0)) == 20.0
    assert whole_idle_s(read_idle_log(written(tmp_path, HEADER + "n1,0,10\n"))) is None


def test_a_log_of_slots_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    log = read_idle_log(written(tmp_path, SLOTS + "n[1-2],0,30,3,4\nn1,10,100,0,4\n"))
    write_idle_log(tmp_path / "again.csv", log)
    again = read_idle_log(tmp_path / "again.csv")
    assert holes(again) == holes(log)
    assert whole_idle_s(again) == whole_idle_s(log) == 0.0


@each(
    ("row", "cause"),
    [
        ("n1,0,1,4,4", "slot 4 of 4 of n1"),
        ("n1,0,1,-1,4", "slot -1 of 4 of n1"),
        ("n1,0,1,0,4\nn1,1,2,0,8", "line 3: n1 has 8 slots here and 4 before"),
        ("n1,0,1,a,4", "invalid literal for int"),
        ("n1,0,1", "3 fields: expected 5"),
    ],
)
def test_a_slot_that_cannot_be_is_refused(tmp_path: Path, row: str, cause: str) -> None:
    with pytest.raises(LogError, match=cause):
        read_idle_log(written(tmp_path, SLOTS + row + "\n"))
