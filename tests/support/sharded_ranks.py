"""Sharded trainings whose ranks are processes that come, go and die as a script says.

FSDP2 works on torch's default group, so ranks cannot be threads here.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import itertools
import os
import shutil
import signal
import tempfile
import threading
import time
import traceback
import unittest.mock
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
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
from oakum_worker.protocol import Endpoint, Generation, Member
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import Task
from pipeline_ranks import device_stand_in, move_to_stand_in, nccl_stand_in
from rank_processes import fork_context
from training_ranks import build_spec, build_task
from waiting import DEADLINE_S, wait_until

_PATIENCE_S = DEADLINE_S / 4
"""For a group to connect: longer than that takes on a busy machine, and short enough to begin the script again."""


@dataclass(frozen=True)
class Act:
    """A generation: which processes are its ranks, in order, and how it ends."""

    members: tuple[int, ...]
    until: int
    """The step at which its members switch to the next act."""
    dies: tuple[int, ...] = ()
    """The processes that are killed instead, in the middle of the step after."""
    dies_after: int = 0
    """How many losses of that step they compute first."""
    nodes: tuple[tuple[int, ...], ...] = ()
    """Of each node the number of ranks of each fragment there, members being dealt to them in their order. Empty:
    each rank is a fragment on a node of its own."""

    def generation(self, number: int, endpoints: Sequence[Endpoint]) -> Generation:
        """The generation of this number, whose processes listen at these endpoints."""
        left, members = list(self.members), []
        for node, sizes in enumerate(self.nodes or [(1,)] * len(left)):
            for size in sizes:
                processes, left = left[:size], left[size:]
                ranks = tuple(endpoints[process] for process in processes)
                members.append(Member(fragment=f"f{processes[0]}", node=f"n{node}", ranks=ranks))
        assert not left
        return Generation(number=number, members=tuple(members))


@dataclass(frozen=True)
class Script:
    """The acts that a set of processes performs."""

    acts: tuple[Act, ...]
    folder: str
    task: Callable[[], Task] = build_task
    spec: dict[str, Any] = field(default_factory=dict)
    durable_at: int = 0
    """The step after which a durable checkpoint is written, if it is not 0."""
    aged_s: float = 0.0
    """Seconds by which the last durable checkpoint is made older at the end of the first act."""
    finish: bool = False
    """Whether the last act's ranks make the end durable."""
    measured: bool = True
    """Whether pipelines and grids are arranged by measured times, which may differ from run to run."""
    awaits_ends: bool = False
    """Whether each act waits until the process groups of earlier acts are gone."""
    kind: str = "cpu"
    """Of the ranks' devices."""
    afresh: bool = False
    """Whether no other script has used the processes before."""


@dataclass
class Outcome:
    """The outcome of one process."""

    losses: list[tuple[int, float]] = field(default_factory=list)
    """(step, loss) of every step that it finished, those taken again included."""
    origins: list[str] = field(default_factory=list)
    """Where each generation's state came from."""
    redone: list[int] = field(default_factory=list)
    """How many steps each generation took again."""
    due: list[bool] = field(default_factory=list)
    """Whether this process, as rank 0, would begin each generation with a durable checkpoint."""
    warnings: list[str] = field(default_factory=list)
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    """What the task's `evaluate` found on this rank, by step."""
    peaks_bytes: list[int] = field(default_factory=list)
    """For each generation, the most memory that the change to it needed beside what was in use."""
    weights: dict[str, Any] = field(default_factory=dict)
    """The parameters of its layers at the end of the last act, as arrays by name; of a rank of a pipeline."""
    read: list[int] = field(default_factory=list)
    """The samples that it has read, where the data set notes them."""
    diverged: str = ""
    """What its training ended with, where it diverged."""
    told: list[str] = field(default_factory=list)
    """What it has said in `TrainingWarning`s."""
    error: str = ""


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
            result = self._loop.step(self._act + 1 if rank == 0 and is_last else 0, checkpoint=asked)
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


def _main(line: Connection, stacks: Path) -> None:
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


@dataclass
class _Child:
    """A process of scripts, from the outside."""

    process: ForkServerProcess
    line: Connection
    stacks: Path

    @classmethod
    def start(cls) -> _Child:
        context = fork_context()
        ours, theirs = context.Pipe()
        descriptor, name = tempfile.mkstemp(prefix="stacks-of-a-rank-")
        os.close(descriptor)
        process = context.Process(target=_main, args=(theirs, Path(name)), daemon=True)
        process.start()
        theirs.close()
        return cls(process, ours, Path(name))

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.line.close()
        self.stacks.unlink(missing_ok=True)


_MOST_KEPT = 4
_kept: list[_Child] = []
"""Processes that have performed scripts to their ends, for the next ones: the first steps of sharded training take
a process a second, and later ones milliseconds."""


@atexit.register
def _end_kept() -> None:
    for child in _kept:
        child.end()


def play(script: Script) -> list[Outcome | None]:
    """Play the script's acts; returns the outcome of each process, None for one that was killed.

    On a busy machine about one group in a thousand fails to connect; the script is then begun again, once.
    """
    with tempfile.TemporaryDirectory() as before:
        shutil.copytree(script.folder, before, dirs_exist_ok=True)
        outcomes = _play(script)
        if any("could not be formed" in outcome.error for outcome in outcomes if outcome is not None):
            shutil.rmtree(script.folder)
            shutil.copytree(before, script.folder)
            outcomes = _play(script)
    for outcome in outcomes:
        assert outcome is None or not outcome.error, outcome.error
    return outcomes


def _play(script: Script) -> list[Outcome | None]:
    numbers = range(1 + max(number for act in script.acts for number in act.members))
    kept = [] if script.afresh else [_kept.pop() for _ in numbers[: len(_kept)]]
    children = [*kept, *(_Child.start() for _ in numbers[len(kept) :])]
    lines = [child.line for child in children]
    is_calm = False
    try:
        for number, line in enumerate(lines):
            line.send((script, number))
        endpoints = [_receive(line) for line in lines]
        for line in lines:
            line.send(endpoints)
        outcomes = _watch(script, lines)
        is_calm = all(outcome is not None and not outcome.error for outcome in outcomes)
        return outcomes
    except AssertionError as error:
        error.add_note(_stacks(children))
        raise
    finally:
        for child in children:
            if is_calm and not script.afresh and len(_kept) < _MOST_KEPT:
                child.line.send(None)
                _kept.append(child)
            else:
                child.end()


def _stacks(children: list[_Child]) -> str:
    """The stacks of all threads of each living process, as text: which line of which function each one is in."""
    for child in children:
        if child.process.is_alive() and child.process.pid is not None:
            os.kill(child.process.pid, signal.SIGUSR1)
    time.sleep(1.0)  # the signal's handler writes at once, whatever the process waits for
    return "\n".join(child.stacks.read_text() for child in children)


def _receive(line: Connection) -> Any:
    assert line.poll(DEADLINE_S), "a process did not answer"
    answer = line.recv()
    assert not isinstance(answer, Outcome), answer.error
    return answer


def _watch(script: Script, lines: list[Connection]) -> list[Outcome | None]:
    """Wait until all processes have ended; returns the outcome of each, None for one that was killed as the script
    says. As soon as one is killed, the others are told.

    Processes send a number when they begin an act and when they have taken a step, and their outcome at the end.
    Raises `AssertionError` when none has sent anything for `DEADLINE_S`, however long the script takes in all.
    When a process fails, its outcome alone is returned, since the others may wait for it for ever.
    """
    outcomes: dict[int, Outcome | None] = {}
    while len(outcomes) < len(lines):
        waiting = [line for number, line in enumerate(lines) if number not in outcomes]
        ready = wait(waiting, timeout=DEADLINE_S)
        assert ready, f"no word from {[number for number in range(len(lines)) if number not in outcomes]}"
        for line in ready:
            number = lines.index(line)
            try:
                word: int | Outcome = line.recv()  # type: ignore[call-arg,assignment]  # of pipes, not of sockets
                if not isinstance(word, Outcome):
                    continue
                if word.error:
                    return [word]
                outcomes[number] = word
            except (EOFError, ConnectionResetError):
                outcomes[number] = None
                over = next(index for index, act in enumerate(script.acts, 1) if number in act.dies)
                for other in lines:
                    with contextlib.suppress(OSError):
                        other.send(over)
    return [outcomes[number] for number in range(len(lines))]
