"""Random choices of a training step that do not depend on how its samples are dealt to nodes."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import deep_backward_child
from cells import each
from oakum_worker.parallel.chunks import share_of
from oakum_worker.randomness import keyed
from oakum_worker.randomness.batch_dims import batch_dim
from oakum_worker.randomness.counters import mix
from oakum_worker.randomness.keyed import KeyedBits, normal, uniform
from oakum_worker.randomness.sample_randomness import SampleRandomness
from oakum_worker.randomness.torch_functions import _attention_weights

CPU = torch.device("cpu")
NUM_SAMPLES = 12
LENGTH = 7
WIDTH = 8

Function = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def _doubles_one_thread_and_fresh_warnings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(keyed, "_warned", set())
    before = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    yield
    torch.set_default_dtype(before[0])
    torch.set_num_threads(before[1])


class Calls(nn.Module):
    """A model of linear layers around a function, so that there are gradients on both sides of it."""

    def __init__(self, function: Function, sequence_first: bool = False) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.function = function
        self.sequence_first = sequence_first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        x = self.function(x.transpose(0, 1)).transpose(0, 1) if self.sequence_first else self.function(x)
        return self.after(x)


def build_inputs(count: int = NUM_SAMPLES) -> torch.Tensor:
    """Samples of shape (LENGTH, WIDTH)."""
    return torch.randn(count, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))


def train(
    model: nn.Module, inputs: torch.Tensor, micro_batches: list[range], key: int = 5, **options: Any
) -> list[torch.Tensor]:
    """Losses of the samples in these micro-batches, and the gradients of their sum."""
    randomness = SampleRandomness(CPU, **options)
    model.zero_grad()
    losses = []
    for chunk in micro_batches:
        with randomness.samples(key, chunk.start, len(chunk)) as call:
            made = call(lambda part: (model(part) ** 3).flatten(1).sum(1), inputs[chunk.start : chunk.stop])
            made.sum().backward()
        losses.append(made.detach())
    return [
        torch.cat(losses),
        *(parameter.grad.clone() for parameter in model.parameters() if parameter.requires_grad),
    ]


def deal_to_ranks(model: nn.Module, inputs: torch.Tensor, world_size: int) -> list[torch.Tensor]:
    """The same, each rank's share computed as by a process of its own, in micro-batches of 3."""
    parts = []
    for rank in range(world_size):
        share = share_of(len(inputs), rank, world_size)
        chunks = [range(start, min(start + 3, share.stop)) for start in range(share.start, share.stop, 3)]
        parts.append(train(model, inputs, chunks))
    losses = torch.cat([part[0] for part in parts])
    return [losses, *(sum(gradients) for gradients in zip(*(part[1:] for part in parts), strict=True))]


class Attend(nn.Module):
    def __init__(self, need_weights: bool, batch_first: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, dropout=0.4, batch_first=batch_first)
        self.need_weights = need_weights

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        attended: torch.Tensor = self.attention(x, x, x, need_weights=self.need_weights)[0]
        return attended


def encode(batch_first: bool) -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.3, batch_first=batch_first, norm_first=True)


def drop_path(x: torch.Tensor) -> torch.Tensor:
    return x * x.new_empty(len(x), 1, 1).bernoulli_(0.6)


def through_tokens(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x.reshape(-1, WIDTH), 0.4).view_as(x)


def images(layer: nn.Module) -> Function:
    return lambda x: layer(x.unsqueeze(-1).expand(-1, -1, -1, 3).clone()).mean(-1)


def volumes(layer: nn.Module) -> Function:
    return lambda x: layer(x[..., None, None].expand(-1, -1, -1, 3, 2).clone()).mean((-2, -1))


FUNCTIONS: dict[str, Callable[[], Function]] = {
    "dropout": lambda: nn.Dropout(0.4),
    "dropout in place": lambda: lambda x: F.dropout(x.clone(), 0.4, inplace=True),
    "torch.dropout_": lambda: lambda x: torch.dropout_(x.clone(), 0.4, True),
    "dropout of tokens": lambda: through_tokens,
    "dropout1d": lambda: nn.Dropout1d(0.4),
    "dropout2d": lambda: images(nn.Dropout2d(0.4)),
    "dropout2d in place": lambda: images(nn.Dropout2d(0.4, inplace=True)),
    "dropout3d": lambda: volumes(nn.Dropout3d(0.4)),
    "alpha dropout": lambda: nn.AlphaDropout(0.4),
    "feature alpha dropout": lambda: images(nn.FeatureAlphaDropout(0.4)),
    "rrelu": lambda: nn.RReLU(),
    "rrelu in place": lambda: lambda x: F.rrelu(x.clone(), training=True, inplace=True),
    "attention": lambda: lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.4, is_causal=True),
    "multi-head attention": lambda: Attend(need_weights=False, batch_first=True),
    "multi-head attention with weights": lambda: Attend(need_weights=True, batch_first=True),
    "transformer": lambda: encode(batch_first=True),
    "gumbel softmax": lambda: F.gumbel_softmax,
    "stochastic depth": lambda: drop_path,
    "rand": lambda: lambda x: x * torch.rand(len(x), LENGTH, 1),
    "randn": lambda: lambda x: x + torch.randn(x.shape, dtype=x.dtype),
    "randint": lambda: lambda x: x * torch.randint(1, 5, (len(x), 1, 1)),
    "rand_like": lambda: lambda x: x + torch.rand_like(x),
    "randn_like": lambda: lambda x: x + torch.randn_like(x),
    "randint_like": lambda: lambda x: x + torch.randint_like(x, 3),
    "bernoulli": lambda: lambda x: x * torch.bernoulli(torch.sigmoid(x.detach())),
    "normal": lambda: lambda x: x + torch.normal(x.detach(), 2.0),
    "normal of a size": lambda: lambda x: x + torch.normal(1.0, 2.0, (len(x), 1, WIDTH)),
    "uniform_": lambda: lambda x: x * torch.empty_like(x).uniform_(1, 2),
    "normal_": lambda: lambda x: x * torch.empty_like(x).normal_(1, 2),
    "exponential_": lambda: lambda x: x * torch.empty_like(x).exponential_(2),
    "distribution": lambda: lambda x: torch.distributions.Normal(x, 0.5).rsample(),
    "shared by all": lambda: lambda x: x * torch.rand(()) + torch.randn(WIDTH),
}
SEQUENCE_FIRST: dict[str, Callable[[], Function]] = {
    "dropout, sequence first": lambda: nn.Dropout(0.4),
    "multi-head attention, sequence first": lambda: Attend(need_weights=False, batch_first=False),
    "multi-head attention with weights, sequence first": lambda: Attend(need_weights=True, batch_first=False),
    "transformer, sequence first": lambda: encode(batch_first=False),
}


@each("name", [*FUNCTIONS, *SEQUENCE_FIRST])
def test_losses_and_gradients_do_not_depend_on_how_the_samples_are_dealt(name: str) -> None:
    torch.manual_seed(0)
    model = Calls((FUNCTIONS | SEQUENCE_FIRST)[name](), sequence_first=name in SEQUENCE_FIRST)
    inputs = build_inputs()
    together = train(model, inputs, [range(12)])
    accumulated = train(model, inputs, [range(5), range(5, 10), range(10, 12)])
    torch.testing.assert_close(accumulated, together, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(deal_to_ranks(model, inputs, 3), together, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(train(model, inputs, [range(12)], key=6)[0], together[0])


def attend_by_head(x: torch.Tensor) -> torch.Tensor:
    heads = x.unflatten(-1, (2, -1)).transpose(1, 2).flatten(0, 1)
    attended = F.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.4)
    return attended.unflatten(0, (-1, 2)).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("function", [Attend(need_weights=True, batch_first=True), attend_by_head])
def test_targets_are_not_taken_for_samples_where_there_are_as_many(function: Function) -> None:
    torch.manual_seed(0)
    model = Calls(function).double()
    inputs = torch.randn(LENGTH, LENGTH, WIDTH)
    together = train(model, inputs, [range(LENGTH)])
    torch.testing.assert_close(
        train(model, inputs, [range(4), range(4, LENGTH)]), together, rtol=1e-12, atol=1e-12
    )


@each("mask", ["none", "causal", "boolean", "additive", "nothing to attend to"])
def test_attention_without_fused_kernels_has_the_same_weights(mask: str) -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 6, 4)
    allowed = torch.rand(2, 1, 5, 6) < 0.7
    allowed[..., 0] = True
    if mask == "nothing to attend to":
        allowed[0, 0, 2] = False
    given = {
        "none": None,
        "causal": None,
        "boolean": allowed,
        "additive": torch.randn(2, 1, 5, 6).masked_fill(~allowed, -torch.inf),
        "nothing to attend to": allowed,
    }[mask]
    weights = _attention_weights(query, key, given, mask == "causal", 0.3)
    expected = F.scaled_dot_product_attention(
        query, key, torch.eye(6).expand(2, 3, 6, 6), given, 0.0, mask == "causal", scale=0.3
    )
    torch.testing.assert_close(weights, expected)


def test_grouped_query_attention_drops_as_with_keys_and_values_repeated() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(3, 4, 5, 8), torch.randn(3, 2, 5, 8)

    def attend_to(keys: torch.Tensor, grouped: bool) -> torch.Tensor:
        with SampleRandomness(CPU).samples(5, 0, 3):
            return F.scaled_dot_product_attention(query, keys, keys, dropout_p=0.5, enable_gqa=grouped)

    torch.testing.assert_close(attend_to(key, True), attend_to(key.repeat_interleave(2, 1), False))


def masks(p: float, num_samples: int, num_elements: int, num_calls: int = 1, key: int = 5) -> torch.Tensor:
    """Whether elements were kept: bool, (calls, samples, elements)."""
    ones = torch.ones(num_samples, num_elements, dtype=torch.float32)
    with SampleRandomness(CPU).samples(key, 0, num_samples):
        return torch.stack([F.dropout(ones, p) > 0 for _ in range(num_calls)])


@each("p", [0.01, 0.1, 0.5, 0.9])
def test_elements_are_dropped_as_often_as_asked_for(p: float) -> None:
    kept = masks(p, 128, 8192).double()
    deviation = (p * (1 - p)) ** 0.5
    assert abs(kept.mean() - (1 - p)) < 5 * deviation / kept.numel() ** 0.5
    assert (kept.mean(2) - (1 - p)).abs().max() < 6 * deviation / 8192**0.5
    assert (kept.mean(1) - (1 - p)).abs().max() < 6 * deviation / 128**0.5 + 1 / 128


def test_masks_of_samples_calls_and_steps_are_independent() -> None:
    rows = torch.cat([masks(0.3, 64, 4096, num_calls=4, key=key).flatten(0, 1) for key in (5, 6)]).double()
    rows = (rows - 0.7) / (0.3 * 0.7) ** 0.5
    correlations = (rows @ rows.T / 4096**0.5)[~torch.eye(len(rows), dtype=torch.bool)]
    assert correlations.abs().max() < 6
    assert abs(correlations.square().mean() - 1) < 0.03


def test_elements_of_a_sample_are_independent() -> None:
    columns = torch.cat([masks(0.3, 256, 512, key=key)[0] for key in range(8)]).double()
    columns = (columns - 0.7) / (0.3 * 0.7) ** 0.5
    correlations = (columns.T @ columns / len(columns) ** 0.5)[~torch.eye(512, dtype=torch.bool)]
    assert correlations.abs().max() < 6.5
    assert abs(correlations.square().mean() - 1) < 0.03


@each("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_numbers_are_distributed_as_asked_for(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    generator = KeyedBits()
    generator.begin(3, 0, 64, CPU)
    even = uniform(generator.bits((64, 4096), CPU, "sizes"), dtype)
    assert even.dtype == dtype
    assert 0 < even.min() < even.max() < 1
    counts = torch.histc(even.double(), 64, 0, 1)
    assert ((counts - 4096).square() / 4096).sum() < 63 + 6 * (2 * 63) ** 0.5
    bell = normal(generator.bits((64, 4096), CPU, "sizes"), dtype).double()
    moments = torch.stack([bell.mean(), bell.square().mean(), (bell**3).mean(), (bell**4).mean()])
    torch.testing.assert_close(moments, torch.tensor([0.0, 1.0, 0.0, 3.0]), rtol=0, atol=0.05)
    assert bell.abs().max() < 6.4


def test_whole_numbers_come_from_the_range_asked_for_each_as_often() -> None:
    with SampleRandomness(CPU).samples(5, 0, 64):
        drawn = torch.randint(-3, 4, (64, 1000))
    assert drawn.dtype == torch.int64
    counts = torch.bincount(drawn.flatten() + 3, minlength=7)
    assert counts.shape == (7,)
    assert (counts - 64000 / 7).abs().max() < 500


def test_a_key_gives_these_bits_on_every_machine_and_with_every_version_of_torch() -> None:
    # Changing these numbers changes the random choices of every trainer that continues from a checkpoint.
    generator = KeyedBits()
    torch.manual_seed(1)
    generator.begin(mix(3, 4), 5, 2, CPU)
    assert generator.bits((2, 3), CPU, "sizes").tolist() == [
        [-201100512, -520101152, 690088551],
        [374146564, 755337412, 260260159],
    ]


def test_without_training_or_probability_nothing_is_dropped_and_with_certainty_all() -> None:
    x = torch.ones(4, 3)
    dropout = nn.Dropout(0.5)
    with SampleRandomness(CPU).samples(5, 0, 4):
        assert torch.equal(dropout.eval()(x), x)
        assert torch.equal(F.dropout(x, 0.0), x)
        assert torch.equal(F.dropout(x, 1.0), torch.zeros_like(x))
        assert torch.equal(F.dropout2d(x.view(4, 3, 1, 1), 1.0), torch.zeros(4, 3, 1, 1))


def test_a_probability_out_of_range_is_refused_as_by_torch() -> None:
    with SampleRandomness(CPU).samples(5, 0, 4), pytest.raises(ValueError, match="between 0 and 1"):
        F.dropout(torch.ones(4, 3), 1.5)


def test_what_is_kept_is_scaled_and_in_place_is_in_place() -> None:
    x = torch.ones(4, 1000)
    with SampleRandomness(CPU).samples(5, 0, 4):
        assert F.dropout(x, 0.2).unique().tolist() == [0.0, 1.25]
        assert F.dropout(x, 0.2, inplace=True) is x
    assert x.unique().tolist() == [0.0, 1.25]


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    x = torch.randn(64, 4096, generator=torch.Generator().manual_seed(0))
    with SampleRandomness(CPU).samples(5, 0, 64):
        dropped = F.alpha_dropout(x, 0.2, training=True)
    assert abs(dropped.mean()) < 0.01
    assert abs(dropped.var() - 1) < 0.02


def test_whole_channels_are_dropped() -> None:
    with SampleRandomness(CPU).samples(5, 0, 4):
        kept = F.dropout2d(torch.ones(4, 100, 3, 3), 0.5) > 0
    assert torch.equal(kept.any(-1).any(-1), kept.all(-1).all(-1))
    assert 100 < kept[..., 0, 0].sum() < 300


def test_dropout_of_a_parameter_is_the_same_for_all_samples() -> None:
    weight = nn.Parameter(torch.ones(12, 5))

    def dropped(chunk: range) -> torch.Tensor:
        with SampleRandomness(CPU).samples(5, chunk.start, len(chunk)):
            return F.dropout(weight, 0.5)

    assert torch.equal(dropped(range(12)), dropped(range(6, 9)))


def test_a_generator_of_the_tasks_own_is_left_alone() -> None:
    expected = torch.rand(4, 3, generator=torch.Generator().manual_seed(9))
    with SampleRandomness(CPU).samples(5, 0, 4):
        drawn = torch.rand(4, 3, generator=torch.Generator().manual_seed(9))
    assert torch.equal(drawn, expected)


@each(
    ("shape", "role", "expected"),
    [
        ((6, 5), "activation", 0),
        ((5, 6, 3), "activation", 1),
        ((12, 6, 3), "activation", 1),
        ((12, 5, 3), "activation", 0),
        ((12, 6), "activation", 0),
        ((5, 6), "activation", 1),
        ((5, 7), "activation", None),
        ((0, 7), "activation", None),
        ((), "activation", None),
        ((6, 2), "sizes", 0),
        ((2, 6, 3), "sizes", 1),
        ((12, 3), "sizes", None),
        ((12, 3), "like", 0),
        ((6, 3), "shared", None),
    ],
)
def test_the_batch_is_looked_for_in_a_documented_order(
    shape: tuple[int, ...], role: Any, expected: int | None
) -> None:
    assert batch_dim(shape, 6, role) == expected


def test_dropout_without_a_batch_in_its_shape_warns_once_and_differs_between_micro_batches() -> None:
    def dropped(first: int) -> torch.Tensor:
        with SampleRandomness(CPU).samples(5, first, 4):
            return F.dropout(torch.ones(7, 90), 0.5)

    with pytest.warns(UserWarning, match=r"shape \(7, 90\), in which the 4 samples"):
        one = dropped(0)
    with warnings.catch_warnings(action="error"):
        other = dropped(4)
    assert not torch.equal(one, other)


@each("kind", [nn.LSTM, nn.GRU, nn.RNN])
@each("batch_first", [True, False])
def test_a_recurrent_layers_dropout_depends_on_the_sample_alone(
    kind: Callable[..., nn.RNNBase], batch_first: bool
) -> None:
    torch.manual_seed(0)
    recurrent = kind(WIDTH, WIDTH, num_layers=3, dropout=0.5, bidirectional=True, batch_first=batch_first).double()
    batch, number = 6, 4  # of the micro-batches that are looked at, one has as many samples as steps
    x = torch.randn(batch, number, WIDTH, dtype=torch.float64)

    def compute(chunk: range) -> list[torch.Tensor]:
        with SampleRandomness(CPU).samples(5, chunk.start, len(chunk)):
            own = x[chunk.start : chunk.stop]
            made, last = recurrent(own if batch_first else own.transpose(0, 1))
        states = last if isinstance(last, tuple) else (last,)
        return [made if batch_first else made.transpose(0, 1), *(state.transpose(0, 1) for state in states)]

    with warnings.catch_warnings(action="error"):
        together = compute(range(batch))
        for chunk in (range(4), range(4, 6), range(2, 3)):
            for part, whole in zip(compute(chunk), together, strict=True):
                torch.testing.assert_close(part, whole[chunk.start : chunk.stop])
    recurrent.eval()
    assert not torch.allclose(compute(range(batch))[0], together[0])


def test_a_recurrent_layers_dropout_of_packed_sequences_warns_and_leaves_other_calls_their_numbers() -> None:
    torch.manual_seed(0)
    recurrent = nn.LSTM(WIDTH, WIDTH, num_layers=2, dropout=0.5)
    x = build_inputs(6)

    def compute(chunk: range) -> tuple[torch.Tensor, torch.Tensor]:
        with SampleRandomness(CPU).samples(5, chunk.start, len(chunk)):
            packed = nn.utils.rnn.pack_sequence(list(x[chunk.start : chunk.stop]))
            return recurrent(packed)[0].data, F.dropout(torch.ones(len(chunk), 50), 0.5)

    with pytest.warns(UserWarning, match=r"lstm cannot draw for one sample at a time.*oakum_worker.recurrent"):
        together, mask = compute(range(6))
    assert torch.equal(compute(range(6))[0], together)
    assert torch.equal(compute(range(2, 6))[1], mask[2:])


def test_a_recurrent_layer_without_dropout_draws_nothing_and_does_not_warn() -> None:
    recurrent = nn.GRU(WIDTH, WIDTH, num_layers=2)
    packed = nn.utils.rnn.pack_sequence([torch.ones(3, WIDTH), torch.ones(2, WIDTH)])
    with warnings.catch_warnings(action="error"), SampleRandomness(CPU).samples(5, 0, 2):
        recurrent(packed)


def test_an_order_for_something_else_than_the_samples_is_the_same_in_each_micro_batch() -> None:
    def order(first: int, length: int) -> list[int]:
        with SampleRandomness(CPU).samples(5, first, 4):
            drawn: list[int] = torch.randperm(length).tolist()
        return drawn

    assert order(0, 20) == order(4, 20)
    with pytest.warns(UserWarning, match="randperm"):
        assert sorted(order(0, 4)) == [0, 1, 2, 3]


class Checkpointed(nn.Module):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.checkpoints = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = checkpoint(part, x, use_reentrant=False) if self.checkpoints else part(x)
        return x


def build_checkpointed() -> Checkpointed:
    torch.manual_seed(0)
    return Checkpointed(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.4), encode(True)) for _ in range(2)))


def test_a_checkpoints_recomputation_drops_the_same() -> None:
    model, inputs = build_checkpointed(), build_inputs()
    recomputed = train(model, inputs, [range(12)])
    model.checkpoints = False
    torch.testing.assert_close(recomputed, train(model, inputs, [range(12)]), rtol=0, atol=0)
    model.checkpoints = True
    split = train(model, inputs, [range(5), range(5, 12)])
    torch.testing.assert_close(split, recomputed, rtol=1e-12, atol=1e-12)


def test_what_autograd_computes_in_another_thread_draws_by_sample_too() -> None:
    """There are threads only in deeply nested passes, and afterwards no copy of the process computes gradients: so
    in a process of its own, where that is checked, too."""
    support = Path(deep_backward_child.__file__)
    done = subprocess.run([sys.executable, str(support)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def compiler() -> Iterator[Any]:
    dynamo = pytest.importorskip("torch._dynamo")
    dynamo.reset()
    dynamo.utils.counters.clear()
    # A DistributedDataParallel that another test has left behind would have the graph cut for its buckets.
    with dynamo.config.patch(optimize_ddp=False):
        yield dynamo.utils.counters
    dynamo.reset()


def test_a_compiled_model_drops_the_same_without_breaking_its_graph_or_compiling_again(compiler: Any) -> None:
    torch.manual_seed(0)
    model = Calls(nn.Sequential(Attend(need_weights=False, batch_first=True), nn.Dropout(0.4)))
    inputs = build_inputs()
    compiled: Any = torch.compile(model, backend="aot_eager", dynamic=False)
    for key in (5, 6, 7):
        expected = train(model, inputs, [range(12)], key)
        torch.testing.assert_close(
            train(compiled, inputs, [range(12)], key, always=True), expected, rtol=1e-12, atol=1e-12
        )
    assert (compiler["stats"]["unique_graphs"], sum(compiler["graph_break"].values())) == (1, 0)


def test_a_compiled_model_with_checkpoints_draws_by_sample(compiler: Any) -> None:
    torch.manual_seed(0)
    part = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.4), nn.Linear(WIDTH, WIDTH))
    model, inputs = Checkpointed(part), build_inputs()
    expected = train(model, inputs, [range(12)])
    compiled: Any = torch.compile(model, backend="aot_eager", dynamic=False)
    split = train(compiled, inputs, [range(6), range(6, 12)], always=True)
    torch.testing.assert_close(split, expected, rtol=1e-12, atol=1e-12)


def modes_active() -> int:
    return len(torch.overrides._get_current_function_mode_stack())


def test_a_task_that_draws_nothing_is_freed_of_the_mode_after_a_micro_batch() -> None:
    randomness = SampleRandomness(CPU)
    for expected in (1, 0, 0):
        with randomness.samples(5, 0, 4) as call:
            assert call(modes_active) == expected


def test_a_task_that_draws_keeps_the_mode() -> None:
    randomness = SampleRandomness(CPU)
    for _ in range(3):
        with randomness.samples(5, 0, 4) as call:
            call(torch.rand, 4)
            assert call(modes_active) == 1


def test_a_task_that_begins_to_draw_later_draws_by_sample_from_then_on() -> None:
    def second_micro_batch(first: Callable[..., Any]) -> torch.Tensor:
        randomness = SampleRandomness(CPU)
        with randomness.samples(5, 0, 4) as call:
            call(first, torch.ones(4, 50))
        with randomness.samples(5, 4, 4) as call:
            made: torch.Tensor = call(F.dropout, torch.ones(4, 50))
        return made

    assert torch.equal(second_micro_batch(torch.neg), second_micro_batch(F.dropout))


def test_the_generators_of_python_and_of_torch_are_seeded_alike_for_each_micro_batch_of_a_step() -> None:
    import random

    def draw(first: int) -> float:
        with SampleRandomness(CPU).samples(5, first, 4) as call:
            drawn: float = call(random.random)
        return drawn

    assert draw(0) == draw(4)
