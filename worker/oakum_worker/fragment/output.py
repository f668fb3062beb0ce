"""A fragment's output: what its ranks print goes into the fragment's log, up to a limit.

A loop that prints each batch fills the disk that the log shares with others' trainers. Above the limit the newest
output alone is kept, in memory, and written when a rank ends: the last lines tell why it did.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time

_MOST_BYTES = 64 << 20
_NEWEST_BYTES = 128 << 10
_CHUNK_BYTES = 64 << 10
_DRAIN_S = 0.5


class FragmentOutput:
    """Hands on what the rank processes of a fragment print."""

    def __init__(self, to: int, most_bytes: int = _MOST_BYTES, newest_bytes: int = _NEWEST_BYTES) -> None:
        """Writes to the descriptor `to` at most `most_bytes` in all, and at the end of each process the
        `newest_bytes` of what it has printed since."""
        self._to, self._left_bytes, self._newest_bytes = to, most_bytes, newest_bytes
        self._lock = threading.Lock()
        self._readers: list[threading.Thread] = []

    def open(self) -> int:
        """A descriptor for the output of a process. The caller closes it once the process has it."""
        reading, writing = os.pipe()
        reader = threading.Thread(target=self._hand_on, args=(reading,), daemon=True, name="output")
        self._readers = [each for each in self._readers if each.is_alive()]
        self._readers.append(reader)
        reader.start()
        return writing

    def drain(self) -> None:
        """Wait for a moment until all that ended processes have printed is handed on."""
        until_s = time.monotonic() + _DRAIN_S
        for reader in self._readers:
            reader.join(max(0.0, until_s - time.monotonic()))

    def _hand_on(self, reading: int) -> None:
        newest, num_kept = bytearray(), 0
        try:
            while part := os.read(reading, _CHUNK_BYTES):
                rest = self._write(part)
                num_kept += len(rest)
                newest += rest
                del newest[: -self._newest_bytes]
        finally:
            os.close(reading)
        if num_kept:
            left_out = num_kept - len(newest)
            self._put(f"\n[{left_out:,} bytes of this rank's output are left out here]\n".encode() + newest)

    def _write(self, part: bytes) -> bytes:
        """Write what is within the limit. Returns the rest."""
        with self._lock:
            allowed, rest = part[: self._left_bytes], part[self._left_bytes :]
            self._left_bytes -= len(allowed)
            self._put(allowed)
            if rest and allowed:
                self._put(
                    b"\n[this fragment has printed all that its log takes; from here on the newest output of each "
                    b"rank is kept, and written when the rank ends]\n"
                )
        return rest

    def _put(self, part: bytes) -> None:
        with contextlib.suppress(OSError):  # the disk is full: training is worth more than its log
            while part:
                part = part[os.write(self._to, part) :]
