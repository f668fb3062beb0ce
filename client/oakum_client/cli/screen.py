"""One trainer on one screen: its progress, what it does now, and what its time was spent on."""

from __future__ import annotations

import time
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from oakum_client.cli.output import STATE_STYLES
from oakum_client.cli.units import age, count, decimal, duration, rate
from oakum_service.api.schemas.trainers import DurationView, TimeSpent, TrainerView
from oakum_service.standing import Status
from oakum_service.states import TimeUse, TrainerState
from oakum_solver.wording import counted
from oakum_worker.spec import TrainerSpec

_BAR_WIDTH = 40
_SHARE_WIDTH = 20
_LOST = "yellow"
_FEW_SIZES = 5


def screen_of(view: TrainerView) -> RenderableType:
    """What `oakum show` shows of a trainer on a terminal: progress, present rates, problems, nodes and use of
    time."""
    parts: list[RenderableType] = [_title(view), _progress(view), Text(figures_of(view))]
    parts += [Text(remark, style=_remark_style(view)) for remark in remarks_of(view)]
    parts += ["", _placement(view)]
    if view.time_spent is not None:
        parts += ["", _times(view, view.time_spent)]
    return Group(*parts)


def share_of(view: TrainerView) -> float | None:
    """Share of the trainer's samples that is done, from 0 to 1, or of its steps if its samples are not known; None
    while neither total is known."""
    if view.total_samples:
        return view.samples / view.total_samples
    return view.step / view.total_steps if view.total_steps else None


def steps_of(view: TrainerView) -> str:
    """Text: steps done and in all, their share, and about how long is left; less where that is not known."""
    share = share_of(view)
    if share is None or not view.total_steps:
        return f"step {count(view.step)}"
    text = f"{count(view.step)} / {count(view.total_steps)} steps ({share:.1%})"
    left_s = left_s_of(view)
    return text if left_s is None else f"{text}, about {duration(left_s)} left"


def size_of(view: TrainerView) -> str:
    """Text with the numbers of nodes that the spec allows, such as `2-8` or `1,2,4,8`."""
    least, most, sizes = view.spec.min_nodes, view.spec.max_nodes, view.spec.allowed_sizes
    if len(sizes) > 1:
        return ",".join(map(str, sizes)) if len(sizes) <= _FEW_SIZES else f"{sizes[0]},{sizes[1]}..{sizes[-1]}"
    return str(most) if least == most else f"{least}-{most}"


def bounds_of(spec: TrainerSpec) -> str:
    """Text with the numbers of nodes that the spec allows, such as `2 to 8 nodes` or `1, 2 or 4 nodes`."""
    if len(spec.allowed_sizes) < 2:
        return f"{spec.min_nodes} to {counted(spec.max_nodes, 'node')}"
    *others, last = map(str, spec.allowed_sizes)
    return f"{', '.join(others)} or {last} nodes"


def status_age_of(view: TrainerView) -> str:
    """Text: how long the trainer has had its status; `-` where that is not known."""
    return "-" if view.status_since is None else age(view.status_since)


def time_left_of(view: TrainerView) -> str:
    """Text: time to the trainer's end at the present rate; `-` where that is not known."""
    left_s = left_s_of(view)
    return "-" if left_s is None else duration(left_s)


def why_of(view: TrainerView) -> str:
    """Text: what is wrong with the trainer, and why it waits, has its size or has ended."""
    is_stopped = view.status in (Status.HELD, Status.PAUSED)
    texts = (view.reason, view.condition) if is_stopped else (view.condition, view.reason)
    return "  ".join(" ".join(text.split()) for text in texts if text)


def figures_of(view: TrainerView) -> str:
    """One line of text: loss, rate, batch, metrics, nodes, generation and epoch of the trainer at this moment."""
    nodes = counted(len(view.nodes), "node")
    changes = [f"{len(view.joining)} joining"] if view.joining else []
    changes += [f"{len(view.leaving)} leaving"] if view.leaving else []
    if changes:
        nodes += f" ({', '.join(changes)})"
    facts = [f"loss {decimal(view.loss)}", f"{rate_of(view)} samples/s"]
    facts.append(f"batch {count(view.global_batch or view.spec.global_batch)}")
    if view.learning_rate is not None:
        facts.append(f"learning rate {decimal(view.learning_rate)}")
    facts += [f"{name} {decimal(value)}" for name, value in view.metrics.items()]
    epoch = min(view.epoch + 1, view.spec.epochs)
    facts += [nodes, f"generation {view.generation}", f"epoch {epoch} of {view.spec.epochs}"]
    return "   ".join(facts)


def rate_of(view: TrainerView) -> str:
    """Samples/s, or `<` and an upper bound while a single step takes long."""
    if view.samples_per_s is None and view.samples_per_s_below is not None:
        return f"< {rate(view.samples_per_s_below)}"
    return rate(view.samples_per_s)


def step_cost_of(view: TrainerView) -> str:
    """Text: how long a step takes, and the shares of reading, waiting and computing; empty where no pace is
    known."""
    if view.pace is None:
        return ""
    pace = view.pace
    parts = [f"data {pace.reading_share:.0%}"]
    if pace.waiting_share is not None:
        parts.append(f"waiting for other ranks {pace.waiting_share:.0%}")
    rest = max(0.0, 1 - pace.reading_share - (pace.waiting_share or 0.0))
    return f"{duration(pace.step_s)}: {', '.join([*parts, f'computing {rest:.0%}'])}"


def left_s_of(view: TrainerView) -> float | None:
    """Seconds to the trainer's end at the present rate; None where that is not known."""
    if view.state is not TrainerState.RUNNING or not view.samples_per_s or view.samples_per_s < 0:
        return None
    if view.total_samples:
        samples = view.total_samples - view.samples
    else:
        samples = ((view.total_steps or 0) - view.step) * (view.global_batch or view.spec.global_batch)
    return max(0, samples) / view.samples_per_s


def _title(view: TrainerView) -> Text:
    return Text.assemble((view.name, "bold"), "  ", (view.status, STATE_STYLES.get(view.status, "")))


def _progress(view: TrainerView) -> Table:
    line = Table.grid(padding=(0, 2, 0, 0))
    style = STATE_STYLES.get(view.status, "")
    share = share_of(view) or 0.0
    bar = ProgressBar(total=1.0, completed=share, width=_BAR_WIDTH, complete_style=style, finished_style=style)
    line.add_row(bar, Text(steps_of(view)))
    return line


def remarks_of(view: TrainerView) -> list[str]:
    """Sentences on what stands out: how the trainer ended, a hold or pause, what is wrong with it. The reason for
    its size is shown elsewhere."""
    tells = view.state.ended or view.status in (Status.HELD, Status.PAUSED)
    return [text for text in (view.reason if tells else "", view.condition) if text]


def _remark_style(view: TrainerView) -> str:
    if view.state in (TrainerState.FAILED, TrainerState.DIVERGED):
        return "red"
    return "" if view.state.ended else _LOST


def _placement(view: TrainerView) -> Table:
    """A table: where the trainer trains, where it will, why not on more nodes, and its newest checkpoint."""
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
    warming = [f"{warm_up.node} for {duration(max(0.0, now - warm_up.launched_at))}" for warm_up in view.warming]
    yield "Warming up", ", ".join(warming)
    launched = {*view.nodes, *(warm_up.node for warm_up in view.warming)}
    yield "Also granted", ", ".join(node for node in view.granted if node not in launched)
    yield "Leaving", ", ".join(view.leaving)
    yield "Why", "" if view.reason in remarks_of(view) else view.reason
    yield "Step", step_cost_of(view)
    yield "Checkpoint", checkpoint_of(view, now)
    yield "Best", best_of(view)


def best_of(view: TrainerView) -> str:
    """Text: the best evaluation by the metric that the spec names, and how to get its model; empty without
    one."""
    best = view.best
    if best is None:
        return ""
    where = f"`oakum export {view.name} --step best -o {view.name}.safetensors`"
    return f"{best.metric} {decimal(best.value)}, step {count(best.step)}: {where}"


def checkpoint_of(view: TrainerView, now: float) -> str:
    """Text: the newest durable checkpoint, its age at `now` (Unix seconds) and its folder; `none` or `none yet`
    without one, empty before the first start."""
    if view.checkpoint_step is None:
        if view.started_at is None:
            return ""
        return "none" if view.state.ended else "none yet"
    text = f"step {count(view.checkpoint_step)}"
    where = f", in {view.checkpoint_folder}" if view.checkpoint_folder else ""
    if view.checkpoint_at is None:
        return f"{text}, found on the disk{where}"
    return f"{text}, {duration(round(max(0.0, now - view.checkpoint_at)))} ago{where}"


def _times(view: TrainerView, spent: TimeSpent) -> Table:
    """A table with a line for each use of the trainer's time: seconds, share, and how long such a stall usually
    takes."""
    uses = {
        "training": (spent.training_s, _repeated_steps(spent), "green"),
        "growing": (spent.grow_s, _usual_duration(view.stalls.get(TimeUse.GROW)), _LOST),
        "shrinking": (spent.shrink_s, _usual_duration(view.stalls.get(TimeUse.SHRINK)), _LOST),
        "after losses": (spent.loss_s, _usual_duration(view.stalls.get(TimeUse.LOSS)), _LOST),
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


def _repeated_steps(spent: TimeSpent) -> str:
    if not spent.redone_steps:
        return ""
    steps = counted(spent.redone_steps, "step")
    return f"of it {duration(spent.redone_s)} for {steps} that had to be taken again"


def _warm_up(view: TrainerView) -> str:
    text = "node-time before nodes joined"
    return text if view.start_up is None else f"{text}; {_usual_duration(view.start_up)}"


def _usual_duration(durations: DurationView | None) -> str:
    if durations is None:
        return ""
    return f"{duration(durations.median_s)} in the median, {duration(durations.last_s)} last"
