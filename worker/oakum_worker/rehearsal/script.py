"""The rehearsal of a script: its first step's samples computed as a whole and in two parts, before it is taken.

Only the script can run its loop's body. So the loop is given a few samples of its first batch three times, as a
whole, the first ones, and the rest, and what it computes is compared where it asks for the sums of the gradients.
It does so in copies of the process (`apart`), of which nothing stays. Where there can be none, on accelerators,
the loop itself gets the samples, and its steps are undone as those of a lost rank are.

Some terms of a loss begin later, and gradients that are clipped have to grow first. So fewer samples are rehearsed
once more before some later steps, in copies alone. Then it is seen, too, whether numbers that the script seems to
log take part in training: one more copy changes them, and computes the whole again.

Draws belong to samples and stay as they are. BatchNorm computes with its running statistics meanwhile, as its own
would differ by design; that it is there is a finding of its own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from oakum_worker.errors import SessionError, warn_of_training
from oakum_worker.listing import some_of
from oakum_worker.randomness.batch_dims import BatchDims
from oakum_worker.rehearsal.batch_norm import describe_batch_norm
from oakum_worker.rehearsal.comparison import tolerance
from oakum_worker.rehearsal.logged_numbers import LoggedNumbers
from oakum_worker.rehearsal.passage import Passage, Sketch, Watched, passage_of
from oakum_worker.rehearsal.precision import can_be_in_double, compute_in_double, in_double
from oakum_worker.rehearsal.process_copy import Child, CopyError, can_fork, fork
from oakum_worker.rehearsal.samples import draw, read_again
from oakum_worker.task import Task
from oakum_worker.task_checks import describe

_MOST_SAMPLES, _MOST_LATER = 64, 16
_PATIENCE_S, _PATIENCE_LATER_S = 120.0, 30.0
_COMPARED = 3
"""Passages that are compared: of the whole, and of its two parts."""
_READING_S = 1.0
_TOLERANCE_IN_DOUBLE = 1e-6
"""Relative difference of losses that is let pass where copies compute in more digits than training does."""
_GRADIENTS_TOLERANCE = 30.0
"""How many times as much as losses gradients may differ by, in proportion to their norms."""
_FEWEST_POINTS, _LEAST_SHARE, _ERRORS = 8, 2e-3, 8
"""How many sums of gradients it takes to find a part's share in the whole's, and by how much the share has to be
another, in itself and in standard errors."""
_ONE_SAMPLE = (
    "this script was not rehearsed, so whether its results depend on the number of nodes is not known: a rank has "
    "one sample of a batch, and an accelerator is given no more, since its memory may have no room"
)
_ANOTHER = "on another number of nodes it would be another training"
_PADDING = (
    ". The parts were padded to other lengths: padding must not change a sample's loss, and has to come behind "
    "the sample, since draws belong to places that are counted from its beginning (padding_side='right')"
)
WAY_OUT = (
    "If it is meant so, write `exact: false` into the trainer's spec, or give exact=False where the script "
    "makes its session"
)


class ScriptRehearsal:
    """Has a loop compute its first samples as a whole and in parts, and says what would depend on the number of
    nodes."""

    def __init__(
        self,
        task: Task,
        seed: int,
        *,
        num_samples: int,
        num_ranks: int = 1,
        how_to_weigh: str,
        batch_dims: BatchDims,
        is_first: bool = True,
        logged: LoggedNumbers | None = None,
    ) -> None:
        """The next global batch has `num_samples`, for `num_ranks`; where no process can be copied, not more than
        a rank's share of them is computed, as an accelerator's memory may have no room for more. `how_to_weigh`
        tells how this script gives a loss's weight.
        `batch_dims` learns where the samples lie in what the loop draws. `logged` are the numbers that the script
        seems to log; of those it is found out whether the loss depends on them."""
        self._task, self._seed, self._how_to_weigh = task, seed, how_to_weigh
        self._dims, self._has_learned = batch_dims, False
        self._is_first, self._logged = is_first, logged
        self._copies = can_fork()
        """Whether the samples are computed in copies of this process."""
        most = min(num_samples if self._copies else num_samples // num_ranks, _MOST_SAMPLES)
        self._pieces = _pieces(most if is_first else min(most, _MOST_LATER))
        if self._pieces and self._copies and logged is not None and logged.changed():
            self._pieces.append(self._pieces[0])
        self._patience_s = _PATIENCE_S if is_first else _PATIENCE_LATER_S
        self._passages: list[Passage | None] = []
        self._is_fed = False
        self._is_double = self._copies and can_be_in_double(task.model)
        """Whether copies compute in double precision, whatever the script asks for."""
        self._child: Child | None = None
        self._watched: Watched | None = None
        self.obstacle = _ONE_SAMPLE if is_first and most < 2 <= num_samples else None
        """Why nothing could be compared, where the loop itself does not tell by an error of its own."""

    def next_samples(self) -> range | None:
        """The samples to compute next, as positions in the first global batch; None when all were computed. Where
        this process can be copied, only the copies get samples to compute: in this process it returns None, after
        the copies have ended."""
        while (self._copies or self._is_first) and (self._is_under_way or self._is_to_be_repeated()):
            piece = self._pieces[len(self._passages)]
            began_s = time.monotonic()
            report = self._ask_copy() if self._copies else None
            took_s = time.monotonic() - began_s
            if self.is_copy or (self._is_first and not self._copies):
                self._begin(piece)
                return piece
            if report is not None and "gradients" in report:
                self._passages.append(passage_of(report))
            elif len(self._passages) == _COMPARED:
                self._is_fed = "raised" in (report or {})
                return None
            elif self._is_double and took_s < self._patience_s and "obstacle" not in (report or {}):
                self._begin_anew_as_asked()
            else:
                self.obstacle = _describe_obstacle(report, len(piece), took_s) if self._is_first else None
                return None
        return None

    @property
    def _is_under_way(self) -> bool:
        return len(self._passages) < len(self._pieces)

    def _is_to_be_repeated(self) -> bool:
        """Learn where the samples lie in what is drawn. Returns whether they were taken to lie elsewhere; the
        passages are then made anew."""
        draws = [one.draws for one in self._passages[:_COMPARED] if one is not None]
        if self._has_learned or len(draws) < min(len(self._pieces), _COMPARED):
            return False
        self._has_learned = True
        if not self._dims.learn(draws):
            return False
        self._passages.clear()
        return True

    def _begin_anew_as_asked(self) -> None:
        """From now on have copies compute in the types that the script asks for: it cannot do with others."""
        self._is_double = self._has_learned = False
        self._passages.clear()

    def _ask_copy(self) -> dict[str, Any] | None:
        """Copy the process. Returns the copy's report, and None in the copy itself."""
        try:
            copy = fork(self._patience_s)
        except CopyError:
            self._copies = self._is_double = False
            return None
        if isinstance(copy, Child):
            self._child = copy
            return None
        return copy

    def take_batch(self, batch: Any) -> Any:
        """The samples were read and collated. Returns the batch that the body is to be given."""
        assert self._watched is not None
        self._watched.take_batch(batch)
        return in_double(batch) if self._is_double and self.is_copy else batch

    def take(
        self,
        loss: float,
        weight: float,
        gradients: Mapping[int, torch.Tensor],
        *,
        is_total: bool,
        gathers: bool,
        types: Iterable[torch.dtype] = (),
    ) -> None:
        """The body has computed these samples: the mean `loss`, its weight, and the gradients by the parameters'
        ids, which are divided by the samples. `types` are those in which the loss was computed. Does not return in
        a copy."""
        assert self._watched is not None
        passage = self._watched.end(loss, weight, gradients, is_total=is_total, gathers=gathers)
        passage.tolerance = tolerance(self._task, *types)
        if self._is_double:
            passage.tolerance = max(passage.tolerance, _TOLERANCE_IN_DOUBLE)
        if self._child is not None:
            self._child.tell(asdict(passage))
        self._passages.append(passage)

    @property
    def is_copy(self) -> bool:
        """Whether this process is a copy, which ends with what it computes."""
        return self._child is not None

    def break_off(self, error: BaseException | None = None) -> None:
        """Give up on the present samples, because the loop's body has raised `error` or has left the loop:
        training will do the same. Does not return in a copy."""
        if self._child is not None:
            self._child.tell({} if error is None else {"raised": describe(error)})
        if self._watched is not None:
            self._watched.close()
        self._passages.append(None)

    def _begin(self, piece: range) -> None:
        if self._is_double and self.is_copy:
            compute_in_double(self._task.model)
        if len(self._passages) == _COMPARED and self._logged is not None and self.is_copy:
            self._logged.disturb()
        self._watched = Watched(self._task, len(piece), self._dims)
        if len(self._passages) == 0 and self._child is not None and self._is_first:
            self._watched.passage.unlike = self._read_again()

    def _read_again(self) -> str | None:
        """Read a few samples twice."""
        until_s = time.monotonic() + _READING_S
        try:
            drawn = draw(self._task, self._seed, 0, 4, until_s)
            return read_again(self._task, self._seed, drawn, until_s)
        except Exception:
            return None  # training reads the same data set, and tells

    def findings(self) -> Iterator[Finding]:
        """What would depend on the number of nodes, the most certain first; nothing where the body has raised."""
        passages = [one for one in self._passages[:_COMPARED] if one is not None]
        if len(passages) < min(len(self._pieces), _COMPARED) or not passages:
            return
        whole, *parts = passages
        if whole.unlike is not None:
            yield Finding(whole.unlike)
        for where in dict.fromkeys(where for one in passages for where in one.moved):
            yield Finding(
                f"{where}, a random generator of the script's own, was drawn from for the batch: each rank draws "
                "from its own, and a node that joins begins anew. Leave the `generator` argument out: torch's "
                "own draws then depend on seed, step and sample alone. Or ask oakum_worker.generators for those "
                "of the samples"
            )
        for text in dict.fromkeys(text for one in passages for text in one.unkeyed):
            yield Finding(text)
        if whole.normalised:
            yield Finding(describe_batch_norm(whole.normalised), is_of_batch_norm=True)
        if all(one.is_comparable and not one.gathers for one in passages):
            yield from self._differences(whole, parts)

    def describe_logged(self) -> str | None:
        """A sentence that names the script's numbers, losses and their means as it logs them, if the loss became
        another when a copy of the process changed them; None if it did not."""
        if self._logged is None:
            return None
        compared = [one for one in self._passages if one is not None]
        if len(compared) > _COMPARED:
            loss, disturbed = compared[0].loss, compared[_COMPARED].loss
            self._is_fed = abs(loss - disturbed) > _TOLERANCE_IN_DOUBLE * abs(loss)
        return _describe_logged(self._logged.changed()) if self._is_fed else None

    def _differences(self, whole: Passage, parts: Sequence[Passage]) -> Iterator[Finding]:
        names = [n for n in parts[0].buffers if n in parts[1].buffers and _differ(*(p.buffers[n] for p in parts))]
        if names:
            yield Finding(
                f"{some_of(names)} is set by a forward pass from the samples of this rank alone, so the ranks "
                "would differ and rank 0's value would be kept: compute it from all ranks' samples "
                "(oakum_worker.gathering.gather_batch), or normalise within a sample (GroupNorm, LayerNorm)"
            )
        if not all(math.isfinite(one.loss) for one in (whole, *parts)):
            return
        allowed = max(one.tolerance for one in (whole, *parts))
        weight = sum(one.weight for one in parts)
        together = sum(one.loss * one.weight for one in parts) / weight if weight else 0.0
        scale = max(abs(one.loss) for one in (whole, *parts))
        sizes = f"{parts[0].num_samples} and {parts[1].num_samples}"
        weighted = f"its parts of {sizes} samples, weighted by their {'weights' if whole.is_total else 'samples'}"
        off = [name for name in whole.gradients if _is_off(name, whole, parts, weight, allowed)]
        if abs(whole.loss - together) > allowed * scale:
            difference = (
                f"the loss of {whole.num_samples} samples is {whole.loss:.6g}, and {weighted}, make {together:.6g}"
            )
        elif off:
            difference = (
                f"the gradient of {some_of(off)} is for {whole.num_samples} samples not that of {weighted}"
            )
        elif not self._is_double and (share := _share_of_first(whole, *parts)) is not None:
            difference = (
                f"the gradients of {whole.num_samples} samples are to {share:.1%} those of the first "
                f"{parts[0].num_samples}, which are to have a part of {parts[0].weight / weight:.1%} in them"
            )
        else:
            return
        yield Finding(f"{difference}: {_ANOTHER}. {self._what_to_write(whole, parts)}")

    def _what_to_write(self, whole: Passage, parts: Sequence[Passage]) -> str:
        if abs(whole.loss - sum(one.loss for one in parts)) <= whole.tolerance * abs(whole.loss):
            return "It is the sum over the samples: take reduction='mean', or divide by their number"
        if whole.changes_weights:
            return (
                "The loop changes weights between its passes, as SAM does, by the gradients of this rank's "
                "samples. Gradients are summed over the ranks once in a step, so this cannot be made exact"
            )
        if any(one.draws_elsewhere for one in (whole, *parts)):
            return (
                "The loop draws from NumPy's or Python's generator, which gives each rank the same numbers for "
                "other samples: draw with torch, whose numbers belong to samples, or from generators that do "
                "(oakum_worker.generators.batch_rngs)"
            )
        padded = any(one.lengths != whole.lengths for one in parts)
        return (
            "A mean over tokens, over weights of classes or over what a mask leaves is no mean over samples: "
            f"{self._how_to_weigh}. A loss that compares samples with each other, as contrastive ones do, has to "
            "see all ranks' samples: oakum_worker.gathering.gather_batch has them. What is a ratio over the "
            "batch, as Dice is, has to be computed for each sample and averaged, or of the gathered "
            f"batch{_PADDING if padded else ''}"
        )


@dataclass(frozen=True)
class Finding:
    """A way in which training would depend on the number of nodes."""

    text: str
    is_of_batch_norm: bool = False


def refuse_or_warn(findings: Iterator[Finding], *, is_exact: bool, is_alone: bool) -> None:
    """Raise `SessionError` for the first finding, or warn of each where training need not be exact. Alone,
    BatchNorm is warned of, since only a trainer's spec can say what to do about it."""
    for finding in findings:
        if not is_exact or (is_alone and finding.is_of_batch_norm):
            warn_of_training(finding.text, stacklevel=2)
        else:
            raise SessionError(f"{finding.text}. {WAY_OUT}")


def _is_off(name: str, whole: Passage, parts: Sequence[Passage], weight: float, allowed: float) -> bool:
    sketches = [one.gradients.get(name, Sketch([], 0.0)) for one in parts]
    shares = [one.weight / weight if weight else 0.0 for one in parts]
    gradient = whole.gradients[name]
    together = sum(share * one.sum for share, one in zip(shares, sketches, strict=True))
    scale = max(gradient.norm, *(share * one.norm for share, one in zip(shares, sketches, strict=True)))
    # Gradients that are nothing but rounding, as of a bias before a normalisation, are small beside the others.
    largest = max(one.norm for one in whole.gradients.values())
    return abs(gradient.sum - together) > _GRADIENTS_TOLERANCE * allowed * max(scale, 1e-2 * largest)


def _share_of_first(whole: Passage, first: Passage, second: Passage) -> float | None:
    """The part that the first samples' gradients have in the whole's, where that is not their part of the weights;
    None where it is, or where there are too few gradients to tell.

    A mean over other items than samples gives all gradients of a part one wrong factor, and rounding is different
    in each of them, so it cancels out: in half precision one gradient alone would have to be off by a tenth. The
    part is the slope of a line through the origin by least squares.
    """
    weight = first.weight + second.weight
    largest = max((one.norm for one in whole.gradients.values()), default=0.0)
    if not weight or not largest:
        return None
    points = []
    for name in whole.gradients.keys() & first.gradients.keys() & second.gradients.keys():
        sketches = [one.gradients[name] for one in (whole, first, second)]
        scale = max(1e-2 * largest, *(one.norm for one in sketches))
        sums = zip(*(one.sums for one in sketches), strict=True)
        points += [((a - b) / scale, (w - b) / scale) for w, a, b in sums if a != b]
    spread = sum(x * x for x, _ in points)
    if len(points) < _FEWEST_POINTS or not spread or not math.isfinite(spread):
        return None
    share = sum(x * y for x, y in points) / spread
    residual = sum((y - share * x) ** 2 for x, y in points) / (len(points) - 1)
    off = abs(share - first.weight / weight)
    return share if off > _LEAST_SHARE + _ERRORS * math.sqrt(residual / spread) else None


def _differ(one: float, other: float) -> bool:
    return abs(one - other) > 1e-6 * max(abs(one), abs(other))


def _describe_obstacle(report: dict[str, Any] | None, num_samples: int, took_s: float) -> str:
    report = report or {}
    if "obstacle" in report:
        why = f"the loop's body {report['obstacle']} before its step, which a copy of the process must not"
    elif "raised" in report:
        why = f"in a copy of the process the loop's body raised {report['raised']}, and here it did not"
    elif took_s >= _PATIENCE_S:
        why = f"a copy of the process had not computed {num_samples} samples after {_PATIENCE_S:g} s"
    else:
        why = "a copy of the process ended, or left the loop, where this one did not"
    return (
        "this script was not rehearsed, so whether its results depend on the number of nodes is not known: "
        f"{why}. Threads and connections made before the loop are not there in a copy; make files after "
        "session.step()"
    )


def _describe_logged(names: Sequence[str]) -> str:
    return (
        f"the loss depends on numbers in {some_of(names)}, which change from step to step, and nothing saves "
        "them: on a node that joins, and after a restart, they begin anew. Keep them in an object with state_dict "
        "and load_state_dict that is handed over as state"
    )


def _pieces(most: int) -> list[range]:
    """The whole, and its two parts."""
    cut = _cut_of(most)
    return [range(most), range(cut), range(cut, most)] if most > 1 else []


def _cut_of(most: int) -> int:
    """Samples of the first part: about three eighths, and a prime number, so that no batch size of a pass divides
    both parts."""
    primes = (2, 3, 5, 7, 11, 13, 17, 19, 23)
    return min((p for p in primes if p < most), key=lambda p: abs(p - most * 3 / 8), default=1)
