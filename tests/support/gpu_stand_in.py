"""A device that stands in for GPUs where there are none: its tensors are in the CPU's memory, out of reach.

torch tells it from the CPU as it tells a GPU: an operation on tensors of both raises an error, and
`torch.stand_in` has streams. A computation is done at once, on the host; but before that the host waits for the
collectives for which the stream waits. So the host runs ahead of the device as far as the next operation on any of
its tensors, where with CUDA it runs ahead until it reads a result.

torch lets such a device have one number. Ranks that are threads of one process have devices of their own all the
same: a thread's tensors are at its `place`.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "stand_in"
R = TypeVar("R")
_TAKES_BOTH = ("copy_", "_to_copy", "set_", "index", "index_put", "index_put_", "_foreach_copy_")
"""Functions of tensors on several devices. CUDA takes indices from the CPU, too."""


class Queued(Protocol):
    """What a device has been given to do."""

    def end(self) -> None:
        """Wait until it is done, or was aborted."""


QUEUED: dict[int, set[Queued]] = defaultdict(set)
"""By place: all that has not ended yet, whether a stream waits for it or not."""
_PRESENT = threading.local()


def place() -> int:
    """The place of this thread's device."""
    return getattr(_PRESENT, "place", None) or 0


class Stream:
    """A stream of a device. Computations are queued behind all that the stream waits for."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.awaited: set[Queued] = set()

    def wait_stream(self, other: Stream) -> None:
        self.awaited |= other.awaited

    def wait_event(self, event: Event) -> None:
        self.awaited |= event.awaited

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.awaited = set(self.awaited)
        return event

    def synchronize(self) -> None:
        for queued in list(self.awaited):
            queued.end()
            self.awaited.discard(queued)  # not before: another thread may wait, too


class Event:
    """A point in a stream."""

    def __init__(self, **options: Any) -> None:
        self.awaited: set[Queued] = set()

    def record(self, chosen: Stream | None = None) -> None:
        (chosen or stream()).record_event(self)

    def wait(self, chosen: Stream | None = None) -> None:
        (chosen or stream()).wait_event(self)

    def synchronize(self) -> None:
        for queued in self.awaited:
            queued.end()

    def query(self) -> bool:
        return False


_DEFAULT_STREAMS: dict[int, Stream] = defaultdict(Stream)
"""By place: the stream of all threads that have chosen no other."""


def stream() -> Stream:
    """This thread's stream."""
    chosen: Stream | None = getattr(_PRESENT, "stream", None)
    return _DEFAULT_STREAMS[place()] if chosen is None else chosen


@contextlib.contextmanager
def _on_stream(chosen: Stream) -> Iterator[None]:
    before, _PRESENT.stream = getattr(_PRESENT, "stream", None), chosen
    try:
        yield
    finally:
        _PRESENT.stream = before


class Future(Generic[R]):
    """As `torch.futures.Future` of a device: done on the stream, and a wait has the stream wait."""

    def __init__(self, *, devices: Any = None) -> None:
        self._set = threading.Event()

    def set_result(self, result: R) -> None:
        self._result, self._awaited = result, set(stream().awaited)
        self._error: Exception | None = None
        self._set.set()

    def set_exception(self, error: Exception) -> None:
        self._error = error
        self._set.set()

    def wait(self) -> R:
        self._set.wait()
        if self._error is not None:
            raise self._error
        stream().awaited.update(self._awaited)
        return self._result


class _Module:
    """`torch.stand_in`, as `torch.cuda`."""

    Stream, Event = Stream, Event

    def is_available(self) -> bool:
        return getattr(_PRESENT, "place", None) is not None  # else torch would prefer it to the CPU elsewhere, too

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def is_initialized(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None: ...

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def set_device(self, device: Any) -> None: ...

    def current_stream(self, device: Any = None) -> Any:
        return stream()

    def default_stream(self, device: Any = None) -> Any:
        return _DEFAULT_STREAMS[place()]

    def stream(self, chosen: Any) -> Any:
        return _on_stream(chosen)

    def synchronize(self, device: Any = None) -> None:
        """As CUDA's: for all streams, also those of collectives that nobody waits for."""
        for queued in list(QUEUED[place()]):
            queued.end()


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    """What autograd asks of the device. It is none to compute on, for those who look for one."""

    def is_available(self) -> bool:
        return False

    def has_primary_context(self, dev_id: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


class StandInTensor(torch.Tensor):
    """A tensor on the device."""

    held: torch.Tensor
    """Where its elements really are."""
    place: int

    @staticmethod
    def __new__(cls, held: torch.Tensor, place: int) -> StandInTensor:
        made: StandInTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )
        made.held, made.place = held, place
        return made

    def record_stream(self, stream: Any) -> None:
        """Its memory is kept by references."""

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.held.untyped_storage()

    def tolist(self) -> Any:
        return self.detach().cpu().tolist()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(function, *args, **(kwargs or {}))


DEVICE = torch.device("privateuseone", 0)


def _run(function: Any, *args: Any, **kwargs: Any) -> Any:
    given = tree_leaves((args, kwargs))
    tensors = [one for one in given if isinstance(one, StandInTensor)]
    where = tensors[0].place if tensors else place()
    stream().synchronize()
    name = function.overloadpacket.__name__
    _refuse_two_devices(name, given, tensors)
    result = function(*tree_map(held, args), **tree_map(held, kwargs))
    if name == "_local_scalar_dense":
        return result
    to_host = any(isinstance(one, torch.device) and one.type != NAME for one in given)
    same = {id(held(one)): one for one in given if isinstance(one, torch.Tensor)}

    def as_given(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or id(value) in same:
            return same.get(id(value), value)
        return value if to_host else StandInTensor(value, where)

    return tree_map(as_given, result)


def held(value: Any) -> Any:
    """A tensor's elements on the CPU; the CPU for the device; other values as they are."""
    if isinstance(value, StandInTensor):
        return value.held
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == NAME else value


def _refuse_two_devices(name: str, given: list[Any], tensors: list[StandInTensor]) -> None:
    others = [one for one in given if isinstance(one, torch.Tensor) and not isinstance(one, StandInTensor)]
    is_mixed = bool(tensors) and any(one.ndim for one in others)
    if (is_mixed or len({one.place for one in tensors}) > 1) and name not in _TAKES_BOTH:
        raise RuntimeError(f"Expected all tensors to be on the same device: {name}")


@contextlib.contextmanager
def at(where: int) -> Iterator[torch.device]:
    """Context in which this thread has the device at this place. Yields the device. Backward passes are computed
    by this thread, since autograd's own thread for the device would have no place."""
    before, _PRESENT.place = getattr(_PRESENT, "place", None), where
    try:
        with torch.autograd.set_multithreading_enabled(False):
            yield DEVICE
    finally:
        _PRESENT.place = before


def _start(start: Any, thread: threading.Thread) -> None:
    """Start a thread at the place of the one that starts it."""
    chosen, run = getattr(_PRESENT, "place", None), thread.run

    def run_there(where: int) -> None:
        with at(where):
            run()

    if chosen is not None:
        thread.run = functools.partial(run_there, chosen)  # type: ignore[method-assign]
    start(thread)


def move(module: nn.Module) -> None:
    """As `module.to(DEVICE)`, by which parameters stay the same objects, as when they move to a GPU."""
    with _MOVING:
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            module.to(DEVICE)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(False)


_MOVING = threading.Lock()


def _tensor(make: Any, data: Any, *, device: Any = None, **options: Any) -> torch.Tensor:
    """`torch.tensor`, which cannot make a tensor for a device that is written in Python."""
    is_here = device is not None and torch.device(device).type == NAME
    made: torch.Tensor = make(data, device=None if is_here else device, **options)
    return made.to(DEVICE) if is_here else made


_setup_privateuseone_for_python_backend(NAME, backend_module=_Module(), hook=_Hooks())
threading.Thread.start = functools.partialmethod(  # type: ignore[method-assign, assignment]
    lambda thread, start: _start(start, thread), threading.Thread.start
)
torch.tensor = functools.partial(_tensor, torch.tensor)
_LIBRARY: Any = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]
_LIBRARY.fallback(_run, "PrivateUse1")
DEVICE = torch.device(NAME, 0)
