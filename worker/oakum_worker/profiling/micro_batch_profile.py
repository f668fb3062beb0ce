"""The fastest micro-batch for a trainer spec on this machine, measured once and remembered."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from oakum_worker.devices import device_memory_bytes, device_name
from oakum_worker.profiling.micro_batch import MicroBatchCandidate, largest_batch, largest_that_fits, search
from oakum_worker.profiling.micro_batch_probe import Probe
from oakum_worker.profiling.refusal import refuse_without_gradients
from oakum_worker.spec import TrainerSpec
from oakum_worker.task import Task, load_task

_FORMAT = 2
"""Of remembered results: those of another one are measured again."""
_MOST_SAMPLES = 1 << 16

Progress = Callable[[str], None]
"""Called with the name of each next measurement."""


@dataclass(frozen=True, slots=True)
class MicroBatchProfile:
    """The micro-batches of a trainer spec that were measured on this machine, and the fastest of them."""

    batch: int
    """Samples of a step that one replica computes."""
    stages: int
    limit_bytes: int
    device: str
    best: MicroBatchCandidate
    candidates: tuple[MicroBatchCandidate, ...]
    peak_bytes: dict[int, int]
    """Micro-batch -> peak memory of a rank in bytes, for each micro-batch whose memory was measured."""
    largest_at_once: int | None
    """The most samples that fit at once, up to 65,536; None where that was not measured."""
    largest_batch: int | None
    """The largest batch that can be trained in micro-batches, up to 65,536; None where that was not measured, or
    no batch fits.

    A stage holds at most as many micro-batches at once as there are stages. Where that many fit, and always
    without a pipeline, every batch can be trained, and this is 65,536.
    """
    num_probes: int
    """Number of memory measurements."""
    remembered: bool = False
    """Whether an earlier run measured this."""


def profile_micro_batch(
    spec: TrainerSpec,
    *,
    limit_bytes: int | None = None,
    stages: int = 1,
    batch: int | None = None,
    find_largest: bool = False,
    cache: Path | None = None,
    progress: Progress = lambda _: None,
) -> MicroBatchProfile:
    """Measure the micro-batches of a replica's share of `batch` samples, and find the fastest that fits.

    `limit_bytes` is what one rank may use, by default what the device has. `batch` is by default the largest share
    that a rank has on any number of nodes. `find_largest` also measures how many samples fit at once and how large
    a batch can be. Given the file `cache`, the result of an earlier run with equal model, device and arguments is
    returned without measuring, and a new result is written there; None: neither. `progress` is called with the
    name of each next measurement. Raises `TaskError` where the task fails or nothing fits, and `SpecError` where
    the spec trains without gradients.
    """
    refuse_without_gradients(spec)
    torch.set_num_threads(spec.threads_per_rank)
    progress("build the task")
    task = load_task(spec)
    device = next(task.model.parameters()).device
    limit = limit_bytes or device_memory_bytes(device)
    share = batch or -(-spec.global_batch // (spec.min_nodes * spec.ranks_per_node))
    key = _key(task, spec, device, [limit, stages, share, find_largest])
    remembered = _recall(cache, key) if cache is not None else None
    if remembered is not None:
        return remembered
    profile = _measure(Probe(task, spec, limit * stages), device, (limit, stages, share), find_largest, progress)
    if cache is not None:
        _remember(cache, key, profile)
    return profile


def _measure(
    probe: Probe, device: torch.device, asked: tuple[int, int, int], find_largest: bool, progress: Progress
) -> MicroBatchProfile:
    limit, stages, share = asked
    peaks: dict[int, int] = {}

    def peak(size: int, num_in_flight: int) -> int | None:
        progress(f"memory of {size} samples")
        footprint = probe.footprint(size)
        return footprint.at_stage(stages, num_in_flight) if footprint is not None else None

    def fits(size: int) -> bool:
        peak_bytes = peak(size, min(stages, share // size))
        if peak_bytes is not None:
            peaks[size] = peak_bytes
        return peak_bytes is not None and peak_bytes <= limit

    def fits_among(batch: int, size: int) -> bool:
        peak_bytes = peak(size, min(stages, -(-batch // size)))
        return peak_bytes is not None and peak_bytes <= limit

    def stage_s(size: int) -> float:
        progress(f"time of {size} samples")
        return probe.seconds(size) / stages

    overhead_s = probe.overhead_s() / stages
    choice = search(share, fits, stage_s, stages=stages, overhead_s=overhead_s, smallest=probe.smallest)
    at_once = range(choice.candidates[-1].micro_batch, _MOST_SAMPLES + 1)
    return MicroBatchProfile(
        batch=share,
        stages=stages,
        limit_bytes=limit,
        device=device_name(device),
        best=choice.best,
        candidates=choice.candidates,
        peak_bytes=dict(sorted(peaks.items())),
        largest_at_once=largest_that_fits(at_once, lambda n: fits_among(n, n)) if find_largest else None,
        largest_batch=(
            largest_batch(_MOST_SAMPLES, fits_among, smallest=probe.smallest) if find_largest else None
        ),
        num_probes=probe.num_probes,
    )


def default_cache() -> Path:
    """Path of the file in the user's cache folder (`$XDG_CACHE_HOME` or `~/.cache`) that keeps earlier results."""
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "oakum" / "micro-batch.json"


def _key(task: Task, spec: TrainerSpec, device: torch.device, asked: list[int]) -> str:
    """A hash of all that the result depends on and that can be seen from here: model, code, device, torch version,
    options. It is the key of a result in the cache file."""
    kinds = sorted({type(module) for module in task.model.modules()} | {type(task.optimizer)}, key=repr)
    parts = {
        "format": _FORMAT,
        "parameters": [[name, list(p.shape), str(p.dtype)] for name, p in task.model.named_parameters()],
        "layers": [[name, repr(module)] for name, module in task.model.named_children()],
        "code": [_source(kind) for kind in kinds] + [_source(task.loss)],
        "device": device_name(device),
        "torch": torch.__version__,
        "asked": asked,
        "spec": [spec.entrypoint, spec.arguments, spec.precision, spec.threads_per_rank],
        "batch_norm": spec.parallel.batch_norm,
    }
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()


def _source(code: Any) -> str:
    try:
        return inspect.getsource(code if hasattr(code, "__code__") or isinstance(code, type) else type(code))
    except (OSError, TypeError):  # made at run time, or in C
        return repr(type(code))


def _recall(cache: Path, key: str) -> MicroBatchProfile | None:
    entry = _entries(cache).get(key)
    try:
        return _from_json(entry) if entry is not None else None
    except (KeyError, TypeError, ValueError, AttributeError):  # written by another version
        return None


def _from_json(entry: dict[str, Any]) -> MicroBatchProfile:
    return MicroBatchProfile(
        **entry
        | {
            "best": MicroBatchCandidate(**entry["best"]),
            "candidates": tuple(MicroBatchCandidate(**one) for one in entry["candidates"]),
            "peak_bytes": {int(size): peak for size, peak in entry["peak_bytes"].items()},
            "remembered": True,
        }
    )


def _entries(cache: Path) -> dict[str, Any]:
    try:
        entries = json.loads(cache.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return entries if isinstance(entries, dict) else {}


def _remember(cache: Path, key: str, profile: MicroBatchProfile) -> None:
    """Write the result into the cache file under `key`. The file is replaced in one step, so that a reader sees
    the old or the new one. Does nothing where the folder cannot be written to."""
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        entries = _entries(cache) | {key: asdict(profile)}
        with tempfile.TemporaryDirectory(dir=cache.parent) as folder:
            written = Path(folder) / cache.name
            written.write_text(json.dumps(entries), encoding="utf-8")
            written.replace(cache)
    except OSError:
        return
