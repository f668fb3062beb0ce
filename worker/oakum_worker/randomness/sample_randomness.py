"""Makes every random choice within a training step depend on (seed, step, sample), never on the number of nodes.

torch's generators give numbers in the order in which they are drawn, so a dropout mask depends on the samples that
a rank computes before it and together with it. Here a torch function mode (an object that torch calls in place of
its functions) replaces the functions that draw; the replacements take their numbers from
`oakum_worker.randomness.keyed`, different ones for each sample.

Covered, also where a layer of torch makes the call: dropout in all its forms, attention with dropout, `rrelu`,
`gumbel_softmax`, dropout between the layers of `nn.LSTM`, `nn.GRU` and `nn.RNN`, `rand`, `randn`, `randint`,
`normal` and `bernoulli` with their `_like` and in-place forms, and what is built on them, such as
`torch.distributions` and stochastic depth. Numbers that are not drawn for the batch's samples, such as a single
number that decides for all of them, are equal on all ranks of a step.

Not covered, with a warning: dropout within torch's recurrent layers of packed sequences (for which there is
`oakum_worker.recurrent`), fractional pooling, `multinomial`, `poisson`, a `randperm` of the batch and the rarer
distributions. They draw new numbers for each micro-batch, so the numbers depend on its size. That also holds for
the masks of dropout in whose input the samples are not found (`batch_dims.batch_dim` says where they are looked
for).

Calls that pass a generator of their own are left to torch (`oakum_worker.generators` has generators that belong to
samples). The elements of a sample are numbered by their place in it, so a sample draws the same however far its
batch is padded, as long as padding comes behind what it pads: padding in front moves each element. Numbers drawn
from Python's or NumPy's generator in the forward pass are equal in all micro-batches of a step.

Activation checkpointing computes with equal numbers again, since they come from torch's default CPU generator,
whose state it restores. In a compiled model the draws are traced into the graph; the compiler "inductor" replaces
that generator's draws by its own, so the masks differ from those without compiling, but depend no more on the
number of nodes. A checkpoint within a compiled model breaks the graph, because the compiler treats switching on a
mode as a side effect, unless `torch._dynamo.config.skip_fwd_side_effects_in_bwd_under_checkpoint` is set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode, handle_torch_function

from oakum_worker.function_mode import call, opened
from oakum_worker.randomness.batch_dims import BatchDims
from oakum_worker.randomness.counters import mix, seed_devices, seed_host, signed
from oakum_worker.randomness.keyed import KeyedBits, call_seed, warn_once
from oakum_worker.randomness.torch_functions import DRAWS, RECURRENT, dropout_at_front
from oakum_worker.torch_internals import SAMPLE_DIRICHLET, STANDARD_GAMMA

_PRESENT: ContextVar[tuple[int, int, int] | None] = ContextVar("samples that are computed", default=None)
_DIMS: ContextVar[BatchDims | None] = ContextVar("where the samples lie in what is drawn", default=None)


def present_samples() -> tuple[int, int, int] | None:
    """The samples that are being computed: (key of the step, position of the micro-batch's first sample in the
    global batch, number of samples in the micro-batch). None outside a step."""
    return _PRESENT.get()


def begin_layer(number: int) -> None:
    """Seed the CPU generators for layer `number` of a chain, so that the layer's random numbers do not depend on
    what was drawn before it. Does nothing outside a step."""
    present = _PRESENT.get()
    if present is not None:
        seed_host(mix(present[0], number))
    if (dims := _DIMS.get()) is not None:
        dims.begin_layer(number)


class SampleRandomness:
    """Gives each sample of a micro-batch random numbers of its own.

    That needs a function mode, which adds 1 to 3 us to each call of a torch function from Python, so the mode
    stays active only for a task that draws random numbers. The first micro-batch is computed with the mode, and
    shows whether the task does. If a later micro-batch draws after all, the changed state of torch's generators
    shows that, and the function that drew is called once more with the mode.

    A loop of someone else's cannot be called once more. For it the mode is always active, until its owner lets it
    `rest`, and is told by `has_missed` that it has to be undone.
    """

    def __init__(self, device: torch.device, *, always: bool = False, dims: BatchDims | None = None) -> None:
        """`device` is the device on which most random numbers are needed. `dims` remembers where the samples lie
        in what is drawn; without it, sizes alone decide.

        `always` keeps the mode active even for a task that does not draw. A compiled model should have this: calls
        in it take no longer, and it would be compiled anew if the mode went.
        """
        self._mode = _SampleMode(dims)
        self._dims = dims
        self._device = device
        self._is_on = True
        self._is_settled = always
        self._is_noted = always
        self.has_drawn = False
        """Whether numbers were drawn, where the mode is always active or rests."""
        self.has_missed = False
        """Whether numbers were drawn while the mode rested. They belong to no sample."""

    @contextmanager
    def samples(self, key: int, first: int, count: int) -> Iterator[Callable[..., Any]]:
        """Context for the forward and the backward pass of one micro-batch of `count` samples.

        `key` is the step's key; the micro-batch's first sample has the position `first` in the global batch.
        Yields a function `call(function, *arguments)`, which returns what `function` returns; the forward pass has
        to be called through it. Seeds the global generators and leaves them in an arbitrary state.
        """
        self._seed(key, first, count)
        with ExitStack() as stack:
            stack.callback(_PRESENT.reset, _PRESENT.set((key, first, count)))
            stack.callback(_DIMS.reset, _DIMS.set(self._dims))
            if self._is_on:
                stack.enter_context(self._mode)
            if self._is_noted:
                stack.callback(self._note, _generator_states(), self._is_on)
            yield partial(self._call, stack, (key, first, count))
        self._is_on = self._is_settled

    def rest(self) -> None:
        """Do without the mode in further passes, as no number was drawn so far: they take less time. Draws are
        still noticed, afterwards (`has_missed`)."""
        self._is_on = self._is_settled = False

    def wake(self) -> None:
        """End the rest: in all further passes each draw is for its sample again."""
        self._is_on = self._is_settled = True
        self.has_missed = False

    def _note(self, before: list[torch.Tensor], was_on: bool) -> None:
        if not all(map(torch.equal, before, _generator_states())):
            self.has_drawn = True
            self.has_missed = self.has_missed or not was_on

    def _call(
        self, stack: ExitStack, samples: tuple[int, int, int], function: Callable[..., Any], *arguments: Any
    ) -> Any:
        if self._is_settled:
            return function(*arguments)
        before = _generator_states()
        result = function(*arguments)
        if all(map(torch.equal, before, _generator_states())):
            return result
        self._is_settled = True
        if self._is_on:
            return result
        self._is_on = True
        self._seed(*samples)
        stack.enter_context(self._mode)
        return function(*arguments)

    def _seed(self, key: int, first: int, count: int) -> None:
        # The same on all ranks: the calls' own numbers come from here. Accelerators' generators serve only calls
        # that are unknown here, and those had better differ.
        seed_host(key)
        if self._device.type != "cpu":
            seed_devices(mix(key, first))
        if self._is_on:
            self._mode.begin(key, first, count, self._device)


class _SampleMode(TorchFunctionMode):
    """Function mode that replaces torch's functions that draw random numbers, while it is active.

    For accelerators autograd works in other threads, to which it hands the active modes on; so what is recomputed
    there gets equal numbers.
    """

    def __init__(self, dims: BatchDims | None) -> None:
        super().__init__()
        self.keyed = KeyedBits(dims)

    def begin(self, key: int, first: int, count: int, device: torch.device) -> None:
        """Draw for the `count` samples from position `first` of the global batch from now on."""
        self.keyed.begin(key, first, count, device)
        self.seed_of_these = mix(key, first)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        answer = _ANSWERS.get(func)
        if answer is not None and kwargs.get("generator") is None:
            kwargs.pop("generator", None)
            return answer(self, func, args, kwargs)
        return call(self, func, args, kwargs)


_Answer = Callable[[_SampleMode, Any, tuple[Any, ...], dict[str, Any]], Any]


def _draw(mode: _SampleMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    drawn = DRAWS[func](mode.keyed, *args, **kwargs)
    return _draw_by_torch(mode, func, args, kwargs) if drawn is NotImplemented else drawn


def _draw_by_torch(mode: _SampleMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call torch's own drawing function so that the numbers of later calls do not depend on it: torch's
    generator gets a seed for this call, and its state is restored afterwards.

    Warns, once for each function, where the numbers are drawn for samples: they then depend on how many samples
    are computed at once. While torch compiles, and for a recurrent layer without dropout, the function is
    called without any of this.
    """
    if torch.compiler.is_compiling() or (func in RECURRENT and not _drops_between_layers(args)):
        return func(*args, **kwargs)
    seed = call_seed()
    if _is_of_samples(mode.keyed, func, args):
        seed = mix(seed, mode.seed_of_these)
        warn_once(
            f"torch's {func.__name__} cannot draw for one sample at a time: its numbers depend on how many "
            "samples a node computes at once" + (_INSTEAD if func in RECURRENT else "")
        )
    state = torch.default_generator.get_state()
    try:
        torch.default_generator.manual_seed(signed(seed))
        return func(*args, **kwargs)
    finally:
        torch.default_generator.set_state(state)


def _go_on_inside(mode: _SampleMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with mode:
        return _OPEN[func](*args, **kwargs)


def _is_of_samples(keyed: KeyedBits, func: Any, args: tuple[Any, ...]) -> bool:
    if func in RECURRENT:
        return True
    if args and isinstance(args[0], torch.Tensor):
        return keyed.batch_dim(args[0].shape, "like") is not None
    return keyed.batch_dim(args[:1], "sizes") is not None


def _drops_between_layers(args: tuple[Any, ...]) -> bool:
    # (input, state, weights, bias, layers, dropout, train, ...); after a packed input come its batch sizes.
    at = 6 if isinstance(args[3], list | tuple) else 5
    return args[at] > 0 and args[at + 1]


def _generator_states() -> list[torch.Tensor]:
    """The states of torch's default CPU generator and of its generators of the CUDA and XPU devices in use."""
    states = [torch.default_generator.get_state()]
    states += [device.get_rng_state() for device in (torch.cuda, torch.xpu) if device.is_initialized()]
    return states


def _dropout_of_weights(weights: torch.Tensor, p: float) -> torch.Tensor:
    """Dropout of attention weights of shape (batch * heads, targets, sources), within the mode."""
    dropped: torch.Tensor = handle_torch_function(_dropout_of_weights, (weights,), weights, p)
    return dropped


def _draw_for_weights(mode: _SampleMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    return dropout_at_front(mode.keyed, *args)


_OPEN: dict[Any, Callable[..., Any]] = {
    function: opened(function)
    for function in (
        F.dropout1d,
        F.dropout2d,
        F.dropout3d,
        F.alpha_dropout,
        F.feature_alpha_dropout,
        F.rrelu,
        F.gumbel_softmax,
        torch.autograd.backward,
        torch.autograd.grad,
        torch.Tensor.backward,
    )
}
_OPEN[F.multi_head_attention_forward] = opened(F.multi_head_attention_forward, dropout=_dropout_of_weights)
_INSTEAD = " (LSTM and GRU of oakum_worker.recurrent.layers draw for each sample, of packed sequences, too)"
_DRAWN_BY_TORCH = (
    torch.native_dropout,
    torch.multinomial,
    torch.Tensor.multinomial,
    torch.randperm,
    torch.poisson,
    torch.binomial,
    STANDARD_GAMMA,
    SAMPLE_DIRICHLET,
    torch.Tensor.random_,
    torch.Tensor.cauchy_,
    torch.Tensor.log_normal_,
    torch.Tensor.geometric_,
    F.fractional_max_pool2d,
    F.fractional_max_pool2d_with_indices,
    F.fractional_max_pool3d,
    F.fractional_max_pool3d_with_indices,
)
_ANSWERS: dict[Any, _Answer] = {
    **dict.fromkeys(DRAWS, _draw),
    **dict.fromkeys(_OPEN, _go_on_inside),
    **dict.fromkeys(_DRAWN_BY_TORCH, _draw_by_torch),
    _dropout_of_weights: _draw_for_weights,
}
