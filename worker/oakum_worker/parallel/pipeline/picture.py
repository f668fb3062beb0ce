"""Draws a simulated schedule as text or SVG: one row for each worker, time from left to right.

A label names the pass and its micro-batches: `F3`, or `F2-3` for two at once. With several pipes a letter names
the pipe (`a` for pipe 0). A worker's second stage in the same pipe is marked by `'`, its third stage by `''`.
"""

from __future__ import annotations

from html import escape

from rich.text import Text

from oakum_worker.parallel.pipeline.operations import COMPUTATIONS, Kind, Operation, Schedule
from oakum_worker.parallel.pipeline.simulation import Simulation, Span

_TERMINAL_COLOURS = ("blue", "dark_orange", "green", "magenta", "cyan", "yellow", "red", "white")
_COLOURS = (
    ("#a9c7ea", "#3b78bd"),
    ("#f6c99b", "#c9701a"),
    ("#aedbb0", "#37883c"),
    ("#d6b9e6", "#8346a6"),
    ("#a5dede", "#20878a"),
    ("#ecdf8f", "#9a8510"),
    ("#f0b3b3", "#b53c3c"),
    ("#cccccc", "#6b6b6b"),
)
"""(forward, backward) colours for each pipe; further pipes use them again."""
_ROW_PX, _GAP_PX, _LEFT_PX, _TOP_PX = 28, 6, 74, 34
_FINEST = 0.25
"""Finest time resolution of the text, as a fraction of the shortest pass."""


def draw_text(schedule: Schedule, simulation: Simulation, *, colours: bool = True) -> Text:
    """Draw one line for each worker; the width of a pass is proportional to its time, in whole slots."""
    slot = _slot(simulation)
    spans = [_computations(simulation, worker) for worker in range(schedule.num_workers)]
    width = max(
        (_needed(schedule, worker, span, slot) for worker, row in enumerate(spans) for span in row),
        default=1,
    )
    lines = []
    for worker, row in enumerate(spans):
        line = Text(f"{worker:>{len(str(schedule.num_workers - 1))}} |")
        column = 0
        for span in row:
            start, end = round(span.start / slot) * width, round(span.end / slot) * width
            line.append("·".ljust(width) * ((start - column) // width), style="dim" if colours else "")
            text = label(schedule, worker, span.operation) + " " * (end - start)
            line.append(text[: max(0, end - start - 1)] + "|", style=_style(span.operation) if colours else "")
            column = end
        lines.append(line)
    return Text("\n").join(lines)


def draw_svg(schedule: Schedule, simulation: Simulation, *, unit_px: float = 30.0) -> str:
    """Draw a self-contained SVG document; `unit_px` is the width in pixels of one unit of time.

    Forward passes are light, backward passes dark, and each pipe has its colour. A triangle marks where the sum of
    a stage's gradients begins. Each shape has a tooltip.
    """
    width = _LEFT_PX + simulation.makespan * unit_px + 16
    height = _TOP_PX + schedule.num_workers * (_ROW_PX + _GAP_PX) + 26
    title = (
        f"{schedule.name}: {schedule.num_stages} stages on {schedule.num_workers} workers, "
        f"{schedule.num_micro_batches} micro-batches, {100 * simulation.bubble_ratio:.1f} % bubbles"
    )
    shapes = [
        shape
        for worker in range(schedule.num_workers)
        for shape in _svg_row(schedule, simulation, worker, unit_px)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="sans-serif" font-size="12" role="img">',
            f"<title>{escape(title)}</title>",
            '<rect width="100%" height="100%" fill="#ffffff"/>',
            f'<text x="8" y="20" font-weight="bold" fill="#222222">{escape(title)}</text>',
            *shapes,
            f'<text x="8" y="{height - 8:.0f}" fill="#555555">{escape(_legend(schedule))}</text>',
            "</svg>",
            "",
        ]
    )


def label(schedule: Schedule, worker: int, operation: Operation) -> str:
    """Label of a computation, in the form that the module's docstring explains."""
    numbers = "-".join(str(number) for number in operation.micro_batches)
    pipe = chr(ord("a") + operation.pipe) if schedule.num_pipes > 1 else ""
    chunk = [stage for pipe, stage in schedule.stages_of(worker) if pipe == operation.pipe].index(operation.stage)
    return f"{operation.kind.value}{numbers}{pipe}" + "'" * chunk


def _computations(simulation: Simulation, worker: int) -> list[Span]:
    return [span for span in simulation.spans[worker] if span.operation.kind in COMPUTATIONS]


def _slot(simulation: Simulation) -> float:
    """Time of one slot: the largest of 1, 1/2 and 1/4 of the shortest pass that divides all times; 1/4 if none
    does."""
    spans = [span for worker in range(simulation.num_workers) for span in _computations(simulation, worker)]
    shortest = min((span.end - span.start for span in spans if span.end > span.start), default=1.0)
    times = [time for span in spans for time in (span.start, span.end)]
    for part in (1.0, 0.5, _FINEST):
        slot = shortest * part
        if all(abs(time / slot - round(time / slot)) < 1e-6 for time in times):
            break
    return slot


def _needed(schedule: Schedule, worker: int, span: Span, slot: float) -> int:
    """Columns that a slot needs so that the pass's label and a bar after it fit."""
    num_slots = max(1, round(span.end / slot) - round(span.start / slot))
    return -(-(len(label(schedule, worker, span.operation)) + 1) // num_slots)


def _style(operation: Operation) -> str:
    colour = _TERMINAL_COLOURS[operation.pipe % len(_TERMINAL_COLOURS)]
    return f"bold {colour}" if operation.kind is Kind.FORWARD else f"{colour} reverse"


def _svg_row(schedule: Schedule, simulation: Simulation, worker: int, unit_px: float) -> list[str]:
    top = _TOP_PX + worker * (_ROW_PX + _GAP_PX)
    middle = top + _ROW_PX / 2 + 4
    shapes = [
        f'<text x="8" y="{middle:.0f}" fill="#222222">worker {worker}</text>',
        f'<rect x="{_LEFT_PX}" y="{top}" width="{simulation.makespan * unit_px:.1f}" height="{_ROW_PX}" '
        'fill="#f2f2f2"/>',
    ]
    for span in simulation.spans[worker]:
        left = _LEFT_PX + span.start * unit_px
        title = f"<title>{escape(str(span.operation))}, {span.start:g} to {span.end:g}</title>"
        if span.operation.kind in COMPUTATIONS:
            light, dark = _COLOURS[span.operation.pipe % len(_COLOURS)]
            forward = span.operation.kind is Kind.FORWARD
            breadth = (span.end - span.start) * unit_px
            shapes.append(
                f'<g>{title}<rect x="{left:.1f}" y="{top}" width="{breadth:.1f}" height="{_ROW_PX}" '
                f'fill="{light if forward else dark}" stroke="#ffffff"/>'
                f'<text x="{left + breadth / 2:.1f}" y="{middle:.0f}" text-anchor="middle" '
                f'fill="{"#222222" if forward else "#ffffff"}">'
                f"{escape(label(schedule, worker, span.operation)[1:])}</text></g>"
            )
        elif span.operation.kind is Kind.SYNC:
            bottom = top + _ROW_PX
            shapes.append(
                f'<path d="M{left:.1f} {bottom - 7} l5 10 h-10 z" fill="#222222" stroke="#ffffff">{title}</path>'
            )
    return shapes


def _legend(schedule: Schedule) -> str:
    pipes = ", a letter and a colour for each pipe" if schedule.num_pipes > 1 else ""
    return f"light: forward, dark: backward{pipes}; triangle: the sum of a stage's gradients begins"
