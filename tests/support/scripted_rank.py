"""A rank whose process comes, goes and dies as a script says, from the inside."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import itertools
import os
import signal
import threading
import traceback
import unittest.mock
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import nn

from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.errors import DivergedError, GroupError, TrainingWarning
from oakum_worker.keeping.keeper import KeeperContext
from oakum_worker.keeping.split import SplitStateKeeper
from oakum_worker.parallel import group
from oakum_worker.parallel.grid_stages.arranging import StackedArranger
from oakum_worker.parallel.grids.arranging import GridArranger
from oakum_worker.parallel.group import GenerationGroup
from oakum_worker.parallel.pipeline.arranging import Arranger
from oakum_worker.parallel.template import ModelTemplate, UnitSizes
from oakum_worker.protocol import Endpoint
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import Task
from pipeline_ranks import device_stand_in, move_to_stand_in, nccl_stand_in
from rank_scripts import Act, Outcome, Script
from training_ranks import build_spec
from waiting import DEADLINE_S, wait_until

_PATIENCE_S = DEADLINE_S / 4
"""For a group to connect: longer than that takes on a busy machine, and short enough to begin the script again."""


class _Process:
    """One process of a script, from the inside."""

    def __init__(self, script: Script, number: int, line: Connection) -> None:
        self._script = script
        self._number = number
        self._line = line
        self._group = GenerationGroup("127.0.0.1")
        self._act = 0
        self._before_bytes = _forget_peak()
        self._groups: list[weakref.ref[Any]] = []
        self.outcome = Outcome()
        self._task = partial(_on_stand_in, script.task) if script.kind == "stand_in" else script.task
        self._endpoints: list[Endpoint] = []
        spec = build_spec(**{"parallel": {"data": "sharded"}, **script.spec})
        # Each block of a model is gathered on its own, small as it is.
        with unittest.mock.patch.dict(ModelTemplate.__init__.__kwdefaults__, sizes=UnitSizes(0, 0)):
            self._loop = TrainingLoop(self._task(), spec)
        checkpoints = DurableCheckpoints(Path(script.folder), keep=spec.checkpoint.keep)
        self._keeper = self._loop.assembly.make_keeper(KeeperContext(self._loop.state, spec, checkpoints, self))

    def successor(self, at_least: int) -> tuple[int, int | None] | None:
        following = self._act + 1
        members = self._script.acts[following - 1].members if following <= len(self._script.acts) else ()
        return following, members.index(self._number) if self._number in members else None

    def closing(self) -> bool:
        return False

    def initial_values(self) -> Mapping[str, torch.Tensor]:
        return self._script.task().model.state_dict()

    def warn(self, text: str) -> None:
        self.outcome.warnings.append(text)

    def run(self) -> None:
        self._line.send(self._group.endpoint)
        self._endpoints = self._line.recv()
        obeying = threading.Thread(target=self._obey, daemon=True)
        obeying.start()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", TrainingWarning)
            self._play_all()
        self.outcome.read = list(getattr(self._loop.task.dataset, "read", ()))
        self.outcome.told = [str(one.message) for one in caught if one.category is TrainingWarning]
        self._line.send(self.outcome)
        obeying.join()

    def _play_all(self) -> None:
        for number, act in enumerate(self._script.acts, 1):
            self._act = number
            if self._number in act.members:
                try:
                    self._play(act)
                except GroupError:
                    if not act.dies:
                        raise
                except DivergedError as error:
                    self.outcome.diverged = str(error)
                self._group.leave()

    def _play(self, act: Act) -> None:
        generation, rank = act.generation(self._act, self._endpoints), act.members.index(self._number)
        formed = self._group.form(generation, rank)
        self._loop.join(formed, rank, generation.world_size, subgroups=self._group.subgroups)
        self.outcome.origins.append(self._keeper.begin(generation, rank))
        self.outcome.due.append(self._keeper.durable_due())
        self._line.send(self._loop.step_count)
        self.outcome.peaks_bytes.append(_peak_bytes() - self._before_bytes)
        if isinstance(self._keeper, SplitStateKeeper):
            self.outcome.redone.append(self._keeper.redone_steps)
        gc.collect()
        if self._script.awaits_ends:
            # A group whose other ranks have left before is let go of by a thread, which may look for a second.
            wait_until("earlier groups are gone", lambda: all(earlier() is None for earlier in self._groups))
        if formed is not None:
            self._groups.append(weakref.ref(formed))
        if self._number in act.dies:
            _let_die(self._loop, act.until, act.dies_after)
        self._loop.evaluations.agree()
        if self._loop.evaluations.is_owed:
            self._evaluate()
        while (self._loop.step_count < act.until or act.dies) and not self._loop.finished:
            asked = rank == 0 and self._loop.step_count + 1 == self._script.durable_at
            is_last = self._loop.step_count + 1 == act.until
            switch = partial(int, self._act + 1 if rank == 0 and is_last else 0)
            result = self._loop.step(switch, checkpoint=asked)
            self.outcome.losses.append((result.step, result.loss))
            self._line.send(result.step)
            self._keeper.after_step(durable=result.checkpoint)
            if self._loop.evaluations.is_due:
                self._evaluate()
            if isinstance(self._keeper, SplitStateKeeper):
                self._keeper.settle()
        if self._act == 1 and isinstance(self._keeper, SplitStateKeeper):
            self._keeper._durable.take_over_age(self._keeper._durable.age_s + self._script.aged_s)
        self._before_bytes = _forget_peak()
        is_pipeline = "pipeline" in self._script.spec.get("parallel", {})
        if self._act == len(self._script.acts) and is_pipeline:
            held = dict(self._loop.task.model.named_parameters())
            real = {name: p.detach().cpu() for name, p in held.items() if not p.is_meta}
            self.outcome.weights = {name: value.numpy().copy() for name, value in real.items()}
        if self._act < len(self._script.acts) or not self._script.finish:
            self._keeper.before_switch(generation, rank)
        else:
            self._keeper.finish()

    def _evaluate(self) -> None:
        metrics = self._loop.evaluations.run() if self._loop.evaluations.include_this_rank else {}
        if metrics:
            self.outcome.metrics[self._loop.step_count] = metrics
        if self._loop.evaluations.record(metrics) and self._loop.evaluations.best is not None:
            self._keeper.keep_best(self._loop.evaluations.best)

    def _obey(self) -> None:
        with contextlib.suppress(EOFError):
            while (over := self._line.recv()) is not None:
                self._group.cut(over)


@contextlib.contextmanager
def _in_tests(measured: bool) -> Iterator[None]:
    """A busy machine is no lost rank: nobody else would have the others form their group again. Where nothing is
    `measured`, pipelines and grids are arranged by the sizes of their layers, on links that are all the same."""
    with contextlib.ExitStack() as patches:
        patches.enter_context(unittest.mock.patch.object(group, "_HEARING_S", _PATIENCE_S))
        if not measured:
            for arranger in (Arranger, StackedArranger, GridArranger):
                patches.enter_context(unittest.mock.patch.object(arranger, "measure_model"))
                patches.enter_context(unittest.mock.patch.object(arranger, "measure_links"))
        yield


def _on_stand_in(build: Callable[[], Task]) -> Task:
    """A task whose model and samples are on what stands in for a GPU."""
    task = build()
    move_to_stand_in(task.model)
    for name, samples in list(vars(task.dataset).items()):
        if isinstance(samples, torch.Tensor):
            setattr(task.dataset, name, samples.to("stand_in"))
    return task


def _let_die(loop: TrainingLoop, step: int, after: int) -> None:
    """Kill this process as soon as it computes anything of the step after, beyond the first `after` losses."""
    left = itertools.count(after, -1)

    def die(*_: Any) -> None:
        if loop.step_count >= step and next(left) <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    if loop.task.chain is not None:
        for layer in loop.task.chain.layers:
            layer.register_forward_pre_hook(die)
        return
    then = loop.task.loss

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        die()
        return then(model, batch)

    loop.task.loss = loss


def _forget_peak() -> int:
    """Bytes that this process uses; its peak is counted from here on."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _memory_bytes("VmRSS")


def _peak_bytes() -> int:
    return _memory_bytes("VmHWM")


def _memory_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


def perform(line: Connection, stacks: Path) -> None:
    """Perform the scripts that come over the line, as one of their processes, until it is closed."""
    # Open until the process ends: whoever waits in vain for this process asks for it.
    faulthandler.register(signal.SIGUSR1, stacks.open("w"))
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    gc.freeze()  # what was imported before needs no looking through, ten times in a script
    drawn = torch.get_rng_state()
    try:
        while True:
            script, number = line.recv()
            torch.set_rng_state(drawn)
            with _in_tests(script.measured), nccl_stand_in(script.kind), device_stand_in(script.kind, 0):
                _Process(script, number, line).run()
            gc.collect()
    except EOFError:
        pass
    except Exception:
        line.send(Outcome(error=traceback.format_exc()))
    # Without torch's teardown, which may wait for peers that are gone.
    line.close()
    os._exit(0)
