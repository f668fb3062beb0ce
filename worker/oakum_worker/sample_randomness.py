"""Every random choice within a training step depends on (seed, step, sample), never on the number of nodes.

torch's generators give numbers in the order in which they are asked for, so a dropout mask depends on the samples
that a rank computes before, and at once. Here a function mode catches the calls that draw, and answers each with
numbers of `oakum_worker.noise`, for each sample its own.

Covered, also where a layer of torch's makes the call: dropout in all its forms, attention with dropout, `rrelu`,
`gumbel_softmax`, `rand`, `randn`, `randint`, `normal` and `bernoulli` with their `_like` and in-place forms, and
what is built of them, such as `torch.distributions` and stochastic depth. Numbers that are not drawn for the
batch's samples, such as a single one that decides for all, are the same on all ranks of a step.

Not covered, with a warning: dropout inside `nn.LSTM`, `nn.GRU` and `nn.RNN`, fractional pooling, `multinomial`,
`poisson`, a `randperm` of the batch and the rarer distributions. They draw anew for each micro-batch, so their
numbers depend on its size. So do the masks of dropout in whose input the samples are not found (`noise.batch_dim`
says where they are looked for).

Calls with a generator of their own are left alone. A sample's elements are numbered within its padded shape. What
is drawn from Python's or NumPy's generator in the forward pass is the same in all micro-batches of a step.

Activation checkpointing repeats its numbers, since these come from torch's default CPU generator, which it puts
back. A compiled model has them traced into its graph; "inductor" replaces that generator's draws by its own, so
its masks are others than those without compiling, but no more dependent on the number of nodes. A checkpoint in a
compiled model breaks the graph, because to the compiler a mode that is switched on within is a side effect, unless
`torch._dynamo.config.skip_fwd_side_effects_in_bwd_under_checkpoint` allows for these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from oakum_worker.drawing import DRAWS
from oakum_worker.function_mode import call, opened
from oakum_worker.noise import Noise, call_seed, warn_once
from oakum_worker.randomness import mix, seed_devices, seed_host, signed

_KEY: ContextVar[int | None] = ContextVar("key of the step", default=None)


def begin_layer(number: int) -> None:
    """What is drawn from here on belongs to a layer of a chain, whatever has been drawn before."""
    key = _KEY.get()
    if key is not None:
        seed_host(mix(key, number))


class SampleRandomness:
    """Gives the samples of each micro-batch random numbers of their own.

    While a function mode is active, each call of a torch function from Python takes 1 to 3 us more, so it is
    entered only for a task that draws. The first micro-batch tells. If one draws later that did not at first, the
    state of torch's generators gives it away, and what drew is computed again, with the mode.
    """

    def __init__(self, device: torch.device, *, always: bool = False) -> None:
        """`device` is where most numbers are needed.

        `always` keeps the mode on for a task that does not draw, too. A compiled model should have it: calls in it
        take no longer, and when the mode goes it would be compiled anew.
        """
        self._mode = _SampleMode()
        self._device = device
        self._is_on = True
        self._is_settled = always

    @contextmanager
    def samples(self, key: int, first: int, count: int) -> Iterator[Callable[..., Any]]:
        """For the forward and the backward pass of one micro-batch of `count` samples.

        `key` stands for the step, and the micro-batch's first sample is number `first` of the global batch. Gives
        a function that calls a function: what belongs to the forward pass has to be called through it. Leaves the
        generators in an arbitrary state.
        """
        self._seed(key, first, count)
        with ExitStack() as stack:
            stack.callback(_KEY.reset, _KEY.set(key))
            if self._is_on:
                stack.enter_context(self._mode)
            yield partial(self._call, stack, (key, first, count))
        self._is_on = self._is_settled

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
    """Answers the calls that draw.

    Autograd hands active modes on to the threads in which it works for accelerators, so what is recomputed there
    draws the same numbers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.noise = Noise()

    def begin(self, key: int, first: int, count: int, device: torch.device) -> None:
        """Answer for these samples from now on."""
        self.noise.begin(key, first, count, device)
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
    made = DRAWS[func](mode.noise, *args, **kwargs)
    return _draw_apart(mode, func, args, kwargs) if made is NotImplemented else made


def _draw_apart(mode: _SampleMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Let torch draw, without a trace in the generator that gives the calls their numbers."""
    if torch.compiler.is_compiling() or (func in _RECURRENT and not _drops_between_layers(args)):
        return func(*args, **kwargs)
    seed = call_seed()
    if _is_of_samples(mode.noise, func, args):
        seed = mix(seed, mode.seed_of_these)
        warn_once(
            f"torch's {func.__name__} cannot draw for one sample at a time: its numbers depend on how many "
            "samples a node computes at once"
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


def _is_of_samples(noise: Noise, func: Any, args: tuple[Any, ...]) -> bool:
    if func in _RECURRENT:
        return True
    if args and isinstance(args[0], torch.Tensor):
        return noise.batch_dim(args[0].shape, "like") is not None
    return noise.batch_dim(args[:1], "sizes") is not None


def _drops_between_layers(args: tuple[Any, ...]) -> bool:
    # (input, state, weights, bias, layers, dropout, train, ...); after a packed input come its batch sizes.
    at = 6 if isinstance(args[3], list | tuple) else 5
    return args[at] > 0 and args[at + 1]


def _generator_states() -> list[torch.Tensor]:
    """States of the generators that draws of the forward pass change."""
    states = [torch.default_generator.get_state()]
    states += [device.get_rng_state() for device in (torch.cuda, torch.xpu) if device.is_initialized()]
    return states


def _dropout_of_weights(weights: torch.Tensor, p: float) -> torch.Tensor:
    """Dropout of attention weights, (batch * heads, targets, sources), where no length is taken for the batch."""
    return F.dropout(weights.flatten(1), p).view_as(weights)


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
_RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
_APART = (
    *_RECURRENT,
    torch.native_dropout,
    torch.multinomial,
    torch.Tensor.multinomial,
    torch.randperm,
    torch.poisson,
    torch.binomial,
    torch._standard_gamma,
    torch._sample_dirichlet,
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
    **dict.fromkeys(_APART, _draw_apart),
}
