"""The schedules of pipelines: one record for each, which the spec's options and rules, the command line, the
search for a layout and the schedules' builders read. It needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

ScheduleName = Literal["gpipe", "1f1b", "interleaved", "zero-bubble", "zero-bubble-v", "chimera"]
PipelineSchedule = Literal["auto", ScheduleName, "message-driven"]
"""What a spec may ask for: a schedule, the fastest of those that are tried, or messages in order of arrival."""
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


_ALL = (
    ScheduleTraits("gpipe"),
    ScheduleTraits("1f1b", is_tried=True),
    ScheduleTraits("chimera", is_tried=True, has_pipes=True),
    ScheduleTraits("interleaved", stages_per_worker=2, has_more_stages=True),
    ScheduleTraits("zero-bubble", is_tried=True, splits_backward=True, has_more_stages=True),
    ScheduleTraits("zero-bubble-v", splits_backward=True, stages_per_worker=2, has_more_stages=True),
)
TRAITS: dict[str, ScheduleTraits] = {each.name: each for each in _ALL}
NAMES: tuple[ScheduleName, ...] = get_args(ScheduleName)
TRIED = tuple(each.name for each in _ALL if each.is_tried)
SPLITTING = tuple(each.name for each in _ALL if each.splits_backward)
