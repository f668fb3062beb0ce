"""A fragment's log takes so much of what its ranks print, and the last lines in any case."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from oakum_worker.fragment.output import FragmentOutput


def printed(folder: Path, *programs: str, **limits: int) -> str:
    """What the log has of programs that run one after the other."""
    with (folder / "log").open("wb") as log:
        output = FragmentOutput(log.fileno(), **limits)
        for program in programs:
            printing = output.open()
            subprocess.run([sys.executable, "-c", program], stdout=printing, stderr=printing, check=False)
            os.close(printing)
            output.drain()
    return (folder / "log").read_text(encoding="utf-8")


def test_it_is_handed_on_as_it_is(tmp_path: Path) -> None:
    assert printed(tmp_path, "print('one')", "import sys; print('two', file=sys.stderr)") == "one\ntwo\n"


def test_above_the_limit_each_rank_keeps_its_last_lines(tmp_path: Path) -> None:
    talks = "for i in range(20000): print('step', i)\nraise SystemExit('out of memory')"
    text = printed(tmp_path, talks, talks, most_bytes=10_000, newest_bytes=1000)
    assert text.startswith("step 0\nstep 1\n")
    assert "has printed all that its log takes" in text
    assert text.count("step 19999\nout of memory\n") == 2
    assert text.count("bytes of this rank's output are left out here") == 2
    assert len(text) < 13_000


def test_a_full_disk_stops_no_rank() -> None:
    with Path("/dev/full").open("wb") as full:
        output = FragmentOutput(full.fileno())
        printing = output.open()
        done = subprocess.run([sys.executable, "-c", "print('x' * 10**6)"], stdout=printing, check=False)
        os.close(printing)
        output.drain()
    assert done.returncode == 0
