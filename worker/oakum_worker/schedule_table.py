"""The schedules of pipelines: one record for each, which the spec's options and rules, the command line, the
search for a layout, the schedules' builders and the benchmarks read. It needs no torch, and is the only place that
has a schedule's name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

ScheduleName = Literal["gpipe", "1f1b", "interleaved", "zero-bubble", "zero-bubble-v", "chimera"]
PipelineSchedule = Literal["auto", ScheduleName, "message-driven"]
"""What a spec may ask for: a schedule, the fastest of those that are tried, or messages in order of arrival."""
MESSAGE_DRIVEN: Final = "message-driven"
Scheme = Literal["auto", "concatenation", "forward-doubling", "backward-halving"]
"""How Chimera schedules more micro-batches than workers (section 3.5 of arXiv:2107.06925); `auto` takes the faster
of `concatenation` and `forward-doubling`."""


@dataclass(frozen=True, slots=True)
class ScheduleTraits:
    """What a schedule is like, whatever its size."""

    name: ScheduleName
    is_tried: bool = False
    """Whether it is tried where the spec leaves the choice."""
    splits_backward: bool = False
    """Whether all backward passes are split into two parts."""
    stages_per_worker: int = 1
    """Default number of stages of one pipe on each worker."""
    has_more_stages: bool = False
    """Whether a worker may have more than one stage of a pipe."""
    has_pipes: bool = False
    """Whether it has several pipes, that is, several orders of the stages on the workers."""
    torch_class: str = ""
    """Class of `torch.distributed.pipelining` that computes its order; empty where Oakum does."""


GPIPE = ScheduleTraits("gpipe")
ONE_F_ONE_B = ScheduleTraits("1f1b", is_tried=True)
CHIMERA = ScheduleTraits("chimera", is_tried=True, has_pipes=True)
INTERLEAVED = ScheduleTraits(
    "interleaved", stages_per_worker=2, has_more_stages=True, torch_class="ScheduleInterleaved1F1B"
)
ZERO_BUBBLE = ScheduleTraits(
    "zero-bubble",
    is_tried=True,
    splits_backward=True,
    has_more_stages=True,
    torch_class="ScheduleInterleavedZeroBubble",
)
ZERO_BUBBLE_V = ScheduleTraits(
    "zero-bubble-v",
    splits_backward=True,
    stages_per_worker=2,
    has_more_stages=True,
    torch_class="ScheduleZBVZeroBubble",
)
_ALL = (GPIPE, ONE_F_ONE_B, CHIMERA, INTERLEAVED, ZERO_BUBBLE, ZERO_BUBBLE_V)
TRAITS: dict[str, ScheduleTraits] = {each.name: each for each in _ALL}
NAMES: tuple[ScheduleName, ...] = get_args(ScheduleName)
TRIED = tuple(each.name for each in _ALL if each.is_tried)
SPLITTING = tuple(each.name for each in _ALL if each.splits_backward)
WITH_PIPES = tuple(each.name for each in _ALL if each.has_pipes)
WITH_MORE_STAGES = tuple(each.name for each in _ALL if each.has_more_stages)
FROM_TORCH = tuple(each.name for each in _ALL if each.torch_class)


@dataclass(frozen=True, slots=True)
class AskedSchedules:
    """The choices that a spec's `schedule` leaves."""

    schedules: tuple[str, ...]
    """Names of the schedules to choose from."""
    message_driven: bool = False
    """Whether workers process messages in the order of arrival; the schedule then only places the stages."""


def asked_schedules(asked: PipelineSchedule) -> AskedSchedules:
    """The choices that this value of the spec's `schedule` leaves."""
    if asked == "auto":
        return AskedSchedules(TRIED)
    if asked == MESSAGE_DRIVEN:
        return AskedSchedules((ONE_F_ONE_B.name,), message_driven=True)
    return AskedSchedules((asked,))
