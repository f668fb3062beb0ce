"""A trainer on one screen: where it is, what it does, and where its time has gone."""

from __future__ import annotations

import time
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from oakum_service.api.schemas import DurationView, TimeSpent, TrainerView
from oakum_service.cli.output import STATE_STYLES
from oakum_service.cli.units import count, decimal, duration, rate
from oakum_service.states import TimeUse, TrainerState

_BAR_WIDTH = 40
_SHARE_WIDTH = 20
_LOST = "yellow"


def screen_of(view: TrainerView) -> RenderableType:
    """Everything about the trainer that changes while it trains."""
    parts: list[RenderableType] = [_title(view), _progress(view), Text(now_of(view))]
    if view.message:
        parts.append(Text(view.message, style=_message_style(view)))
    parts += ["", _placement(view)]
    if view.time_spent is not None:
        parts += ["", _times(view, view.time_spent)]
    return Group(*parts)


def share_of(view: TrainerView) -> float | None:
    """How much of its samples, or else of its steps, is done; None before anyone knows how many there are."""
    if view.total_samples:
        return view.samples / view.total_samples
    return view.step / view.total_steps if view.total_steps else None


def steps_of(view: TrainerView) -> str:
    """Steps, their share, and the time left."""
    share = share_of(view)
    if share is None or not view.total_steps:
        return f"step {count(view.step)}"
    text = f"{count(view.step)} / {count(view.total_steps)} steps ({share:.1%})"
    left_s = _left_s(view)
    return text if left_s is None else f"{text}, about {duration(left_s)} left"


def now_of(view: TrainerView) -> str:
    """What it does at this moment, on one line."""
    nodes = "1 node" if len(view.nodes) == 1 else f"{len(view.nodes)} nodes"
    if len(view.granted) != len(view.nodes) and not view.state.ended:
        nodes += f" ({len(view.granted)} granted)"
    facts = [f"loss {decimal(view.loss)}", f"{rate(view.samples_per_s)} samples/s"]
    facts.append(f"batch {count(view.global_batch or view.spec.global_batch)}")
    if view.learning_rate is not None:
        facts.append(f"learning rate {decimal(view.learning_rate)}")
    facts += [f"{name} {decimal(value)}" for name, value in view.metrics.items()]
    epoch = min(view.epoch + 1, view.spec.epochs)
    facts += [nodes, f"generation {view.generation}", f"epoch {epoch} of {view.spec.epochs}"]
    return "   ".join(facts)


def _left_s(view: TrainerView) -> float | None:
    if view.state is not TrainerState.RUNNING or not view.samples_per_s or view.samples_per_s < 0:
        return None
    if view.total_samples:
        samples = view.total_samples - view.samples
    else:
        samples = ((view.total_steps or 0) - view.step) * (view.global_batch or view.spec.global_batch)
    return max(0, samples) / view.samples_per_s


def _title(view: TrainerView) -> Text:
    return Text.assemble((view.name, "bold"), "  ", (view.state, STATE_STYLES.get(view.state, "")))


def _progress(view: TrainerView) -> Table:
    line = Table.grid(padding=(0, 2, 0, 0))
    style = STATE_STYLES.get(view.state, "")
    share = share_of(view) or 0.0
    bar = ProgressBar(total=1.0, completed=share, width=_BAR_WIDTH, complete_style=style, finished_style=style)
    line.add_row(bar, Text(steps_of(view)))
    return line


def _message_style(view: TrainerView) -> str:
    if view.state is TrainerState.FAILED:
        return "red"
    return "" if view.state.ended else _LOST


def _placement(view: TrainerView) -> Table:
    """Where it trains, where it is about to, why no more, and what is safe on the disk."""
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, text in _places(view):
        if text:
            facts.add_row(name, Text(text))
    return facts


def _places(view: TrainerView) -> Iterator[tuple[str, str]]:
    now = time.time()
    members = ", ".join(f"{node} (rank 0)" if rank == 0 else node for rank, node in enumerate(view.nodes))
    yield "Nodes", members or ("" if view.state.ended else "none")
    warming = [f"{each.node} for {duration(max(0.0, now - each.launched_at))}" for each in view.warming]
    yield "Warming up", ", ".join(warming)
    launched = {*view.nodes, *(each.node for each in view.warming)}
    yield "Also granted", ", ".join(node for node in view.granted if node not in launched)
    if not view.state.ended:
        yield "Leaving", ", ".join(node for node in view.nodes if node not in view.granted)
        yield "Why", view.reason
    yield "Checkpoint", checkpoint_of(view, now)


def checkpoint_of(view: TrainerView, now: float) -> str:
    """The newest durable checkpoint and its age."""
    if view.checkpoint_step is None:
        return "none yet" if view.started_at is not None else ""
    text = f"step {count(view.checkpoint_step)}"
    if view.checkpoint_at is None:
        return f"{text}, found on the disk"
    return f"{text}, {duration(round(max(0.0, now - view.checkpoint_at)))} ago"


def _times(view: TrainerView, spent: TimeSpent) -> Table:
    """A line for each thing that time went into, with what one of its kind costs."""
    uses = {
        "training": (spent.training_s, _redone(spent), "green"),
        "growing": (spent.grow_s, _each(view.stalls.get(TimeUse.GROW)), _LOST),
        "shrinking": (spent.shrink_s, _each(view.stalls.get(TimeUse.SHRINK)), _LOST),
        "after losses": (spent.loss_s, _each(view.stalls.get(TimeUse.LOSS)), _LOST),
        "starting cold": (spent.cold_start_s, "", _LOST),
        "without nodes": (spent.waiting_s, "", "blue"),
    }
    whole_s = sum(seconds for seconds, _, _ in uses.values())
    lines = Table.grid(padding=(0, 2, 0, 0))
    for justify in ("left", "right", "right", "left"):
        lines.add_column(justify=justify, no_wrap=True)
    lines.add_column(overflow="fold")
    since = "since its first start" if spent.since_at == view.started_at else "since an update of the service"
    lines.add_row(Text("Time", style="dim"), duration(whole_s), "", "", Text(since, style="dim"))
    for name, (seconds, remark, style) in uses.items():
        share = seconds / whole_s if whole_s else 0.0
        bar = ProgressBar(
            total=1.0, completed=share, width=_SHARE_WIDTH, complete_style=style, finished_style=style
        )
        lines.add_row(f"  {name}", duration(seconds), f"{share:.1%}", bar, Text(remark, style="dim"))
    lines.add_row("  warm-up", duration(spent.warm_up_node_s), "", "", Text(_warm_up(view), style="dim"))
    return lines


def _redone(spent: TimeSpent) -> str:
    if not spent.redone_steps:
        return ""
    steps = "1 step" if spent.redone_steps == 1 else f"{count(spent.redone_steps)} steps"
    return f"of it {duration(spent.redone_s)} for {steps} that had to be taken again"


def _warm_up(view: TrainerView) -> str:
    text = "of nodes, meanwhile"
    return text if view.start_up is None else f"{text}; {_each(view.start_up)}"


def _each(known: DurationView | None) -> str:
    if known is None:
        return ""
    return f"{duration(known.median_s)} in the median, {duration(known.last_s)} last"
