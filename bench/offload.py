"""Times steps of the offloaded AdamW beside torch's on the device, and measures the device memory that each takes.

    python bench/offload.py                                     # 100, 300 and 1,000 million parameters in float16
    python bench/offload.py --millions 100 --rounds 15 --json offload.json

Without a GPU it runs on the CPU, which tells no more than that it runs: give `--millions 1` there.

- `on the device`: float16 weights and gradients, and float32 weights that torch's fused AdamW updates: 20 bytes a
  parameter, as AxoNN (arXiv:2110.13005) counts.
- `offloaded`: Oakum's `OffloadedAdamW`, with AxoNN's bucket of 16 million elements.
- `one after the other`: the same, but each bucket is copied in, updated and copied out before the next.
- `link`: the time in which the device copies the 12 bytes a parameter that the host holds, both ways at once, from
  and to pinned memory: no step of an offloaded optimizer is shorter.

All ways of taking a step take turns, round after round; medians are printed.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from unittest import mock

import torch
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn

from oakum_client.cli import output
from oakum_worker.devices import device_name, waiting_clock
from oakum_worker.parallel import offload
from oakum_worker.parallel.offload import OffloadedAdamW
from oakum_worker.parallel.offload_streams import WorkStream, WorkStreams, work_streams_of

_NUM_TENSORS = 24
_HOST_BYTES = 12
"""Bytes a parameter on the host: its weight and two moments in float32."""


@dataclass(frozen=True)
class Figures:
    """What was measured on a model of `parameters` elements."""

    parameters: int
    step_s: dict[str, float]
    """Way of taking a step -> median seconds of a step."""
    link_s: float
    """Median seconds in which a step's bytes are copied from and to the host, without any update."""
    memory_bytes: dict[str, int]
    """Way of taking a step -> most device memory that is in use during a step."""


class _OnTheDevice:
    """AdamW in mixed precision without offloading: it updates float32 copies of the model's float16 weights, and
    everything is on the device."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self._parameters: list[torch.Tensor] = [*parameters]
        self._weights: list[torch.Tensor] = [nn.Parameter(parameter.detach().float()) for parameter in parameters]
        self._optimizer = torch.optim.AdamW(self._weights, lr=1e-4, fused=True)

    @torch.no_grad()
    def step(self) -> None:
        """Update the float32 weights, and copy them to the model's."""
        for weights, parameter in zip(self._weights, self._parameters, strict=True):
            assert parameter.grad is not None
            weights.grad = parameter.grad.float()
        self._optimizer.step()
        self._optimizer.zero_grad()
        torch._foreach_copy_(self._parameters, self._weights)


def _parameters(count: int, device: torch.device) -> list[nn.Parameter]:
    """Parameters in float16 with gradients, `count` elements together."""
    generator = torch.Generator(device).manual_seed(0)
    parameters = []
    for _ in range(_NUM_TENSORS):
        values = torch.randn(count // _NUM_TENSORS, generator=generator, device=device).mul_(0.02).half()
        parameter = nn.Parameter(values)
        parameter.grad = values.clone()
        parameters.append(parameter)
    return parameters


def _one_after_the_other(device: torch.device) -> WorkStreams:
    """All copies and updates on one stream."""
    stream = WorkStream(torch.cuda.current_stream(device) if device.type == "cuda" else None)
    return WorkStreams(stream, stream, stream)


def _sequential(step: Callable[[], object]) -> None:
    with mock.patch.object(offload, "work_streams_of", _one_after_the_other):
        step()


class _Link:
    """Copies as many bytes as a step of the offloaded optimizer, both ways at once."""

    def __init__(self, count: int, device: torch.device) -> None:
        length, pinned = min(count, offload.BUCKET_ELEMENTS) * _HOST_BYTES, device.type == "cuda"
        self._inward, self._outward = (torch.zeros(length, dtype=torch.uint8, pin_memory=pinned) for _ in range(2))
        self._here, self._there = (torch.zeros_like(self._inward, device=device) for _ in range(2))
        self._copies, self._rest = divmod(count * _HOST_BYTES, length)
        self._streams = work_streams_of(device)

    def run(self) -> None:
        """Queue the copies: as many bytes in each direction as a step of the offloaded optimizer copies."""
        for length in [*[len(self._inward)] * self._copies, self._rest]:
            self._streams.inward.do(partial(_copy, self._here[:length], self._inward[:length]))
            self._streams.outward.do(partial(_copy, self._outward[:length], self._there[:length]))


def _copy(to: torch.Tensor, of: torch.Tensor) -> None:
    to.copy_(of, non_blocking=True)


def _timed(run: Callable[[], object], clock: Callable[[], float]) -> float:
    began_s = clock()
    run()
    return clock() - began_s


def _peak_bytes(prepare: Callable[[], Callable[[], object]], device: torch.device) -> int:
    """The most device memory in bytes, with parameters and gradients, that is in use during the second step that
    `prepare` makes; the first one brings the optimizer's state into being. 0 on a CPU, which takes no step."""
    if device.type != "cuda":
        return 0
    step = prepare()
    step()
    torch.cuda.reset_peak_memory_stats()
    step()
    return torch.cuda.max_memory_allocated()


def measure(count: int, rounds: int, device: torch.device) -> Figures:
    """Take steps on `count` parameters in all ways."""
    ways: dict[str, Callable[[], Callable[[], object]]] = {
        "on the device": lambda: _OnTheDevice(_parameters(count, device)).step,
        "offloaded": lambda: OffloadedAdamW(_parameters(count, device), lr=1e-4).step,
    }
    memory_bytes = {}
    for name, prepare in ways.items():
        memory_bytes[name] = _peak_bytes(prepare, device)
        gc.collect()
    steps = {name: prepare() for name, prepare in ways.items()}
    offloaded = steps["offloaded"]
    steps["one after the other"] = lambda: _sequential(offloaded)
    link, clock = _Link(count, device), waiting_clock(device)
    taken_s: dict[str, list[float]] = {name: [] for name in (*steps, "link")}
    for number in track(range(rounds + 1), f"{count:,}", console=Console(stderr=True), transient=True):
        for name, run in (*steps.items(), ("link", link.run)):
            took_s = _timed(run, clock)
            if number:  # the first round warms up
                taken_s[name].append(took_s)
    medians_s = {name: statistics.median(each) for name, each in taken_s.items()}
    return Figures(count, medians_s, medians_s.pop("link"), memory_bytes)


def table(figures: list[Figures], device: torch.device) -> Table:
    """Milliseconds a step, and device memory in bytes a parameter."""
    columns = ("parameters", "on the device, ms", "offloaded, ms", "one after the other, ms", "link, ms")
    made = Table(*columns, "link / offloaded", "bytes: on the device", "offloaded", box=box.MARKDOWN)
    made.title = device_name(device)
    for one in figures:
        times = [one.step_s[name] for name in ("on the device", "offloaded", "one after the other")]
        made.add_row(
            f"{one.parameters / 1e6:,.0f} million",
            *(f"{1e3 * seconds:,.1f}" for seconds in (*times, one.link_s)),
            f"{one.link_s / one.step_s['offloaded']:.2f}",
            *(f"{one.memory_bytes[name] / one.parameters:.1f}" for name in ("on the device", "offloaded")),
        )
    return made


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=int, nargs="+", default=[100, 300, 1000], help="millions of parameters")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    figures = [measure(1_000_000 * millions, options.rounds, device) for millions in options.millions]
    output.console().print(table(figures, device))
    if options.json:
        options.json.write_text(json.dumps({"device": device_name(device), "figures": list(map(asdict, figures))}))


if __name__ == "__main__":
    main()
