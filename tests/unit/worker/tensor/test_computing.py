"""What ranks of a grid compute equals what one process computes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cells import each
from oakum_worker.errors import TaskError
from oakum_worker.parallel.tensor.computing import computing
from oakum_worker.parallel.tensor.conversion import take
from oakum_worker.parallel.tensor.grids import Grid, Kind
from oakum_worker.parallel.tensor.placements import Split
from oakum_worker.parallel.tensor.spread import Spread, Work
from oakum_worker.parallel.tensor.wires import Wires
from pipeline_ranks import build_transformer, sentences
from tensor_ranks import compute_alone, compute_on, over_gloo, plan, simulate, together

EVERY = [Grid("1d", 2), Grid("1d", 3), Grid("2d", 2), Grid("2d", 3), Grid("3d", 2), Grid("3d", 3)]
EVERY += [Grid("shards", 2), Grid("shards", 3)]
CUBES = [Grid("3d", 2), Grid("3d", 3)]
SHOWN = [Grid("1d", 3), Grid("2d", 2), Grid("3d", 2), Grid("shards", 2)]
"""One of each kind; `make soak` has two."""
every_grid = pytest.mark.parametrize(
    "grid",
    [pytest.param(grid, marks=() if grid in SHOWN else pytest.mark.soak) for grid in EVERY],
    ids=[f"{grid.kind}-{grid.side}" for grid in EVERY],
)
cubes = pytest.mark.parametrize("grid", CUBES, ids=lambda grid: f"q={grid.side}")
SAMPLES = 36


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def equals_one_process(
    grid: Grid,
    model: nn.Module,
    loss: Callable[..., torch.Tensor],
    batch: Any,
    num_samples: int = SAMPLES,
    **options: Any,
) -> Any:
    """Check that loss and gradients of a float64 model on a grid are those of one process, to 1e-12."""
    model = model.double()
    alone = compute_alone(model, loss, batch)
    spread = compute_on(grid, model, loss, batch, num_samples, **options)
    assert spread.loss == pytest.approx(alone.loss, abs=1e-12)
    for name, gradient in alone.gradients.items():
        assert torch.allclose(spread.gradients[name], gradient, rtol=0, atol=1e-12), name
    return spread


def squares(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(model(batch[:, :-1]), batch[:, -1:])


def features(width: int) -> torch.Tensor:
    """Samples of `width` numbers and one to predict."""
    return normal(SAMPLES, width + 1)


@every_grid
def test_stacked_linear_layers(grid: Grid) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(18, 36), nn.GELU(), nn.Linear(36, 18), nn.Linear(18, 36), nn.Tanh(), nn.Linear(36, 1)
    )
    equals_one_process(grid, model, squares, features(18))


@cubes
def test_y_dx_and_dw_of_a_linear_layer_and_what_is_received(grid: Grid) -> None:
    """(q-1)(MK+KN+MN)/q^3 elements in the forward pass and in the backward pass; gathering again adds X and W."""
    q, (m, k, n) = grid.side, (36, 36, 54)
    x, dy, layer = normal(m, k), normal(m, n, seed=2), nn.Linear(k, n, bias=False).double()
    whole_x = x.clone().requires_grad_()
    y = layer(whole_x)
    y.backward(dy)
    share = (q - 1) * (m * k + k * n + m * n) // q**3
    again = (q - 1) * (m * k + k * n) // q**3
    for keep in (False, True):
        for rank, (local_y, dx, dw, forward, backward) in enumerate(
            simulate(grid, Product(grid, layer, x, dy, keep))
        ):
            place = grid.coordinates(rank)
            i, j, depth = place["i"], place["j"], place["l"]
            rows_a, rows_b = rows(m, q, i, j), rows(m, q, i, depth)
            assert torch.allclose(local_y, y[rows_b][:, part(n, q, j)], rtol=0, atol=1e-12)
            assert torch.allclose(dx, whole_x.grad[rows_a][:, part(k, q, depth)], rtol=0, atol=1e-12)
            assert torch.allclose(
                dw, layer.weight.grad[part(n, q, j)][:, rows(k, q, depth, i)], rtol=0, atol=1e-12
            )
            assert local_y.numel() * q**3 == m * n
            assert dw.numel() * q**3 == k * n
            assert dx.numel() * q**3 == m * k
            assert forward == share
            assert backward == share + (0 if keep else again)


def part(length: int, count: int, number: int) -> slice:
    return slice(length // count * number, length // count * (number + 1))


def rows(length: int, q: int, block: int, sub: int) -> slice:
    """Sub-block `sub` of block `block`."""
    start = length // q * block + length // q**2 * sub
    return slice(start, start + length // q**2)


class Product:
    """Y, dX, dW of one layer on each rank, and the elements received in either pass, with blocks in layout A."""

    def __init__(self, grid: Grid, layer: nn.Linear, x: torch.Tensor, dy: torch.Tensor, keep: bool) -> None:
        self.layer, self.x, self.dy, self.keep = layer, x, dy, keep
        self.conversion = plan(layer, grid, lambda model, batch: model(batch).sum(), x, len(x))

    def __call__(self, wires: Wires) -> Any:
        grid, (m, k), n = wires.grid, self.x.shape, self.dy.shape[1]
        q, place = grid.side, grid.coordinates(wires.rank)  # type: ignore[arg-type]
        i, j, depth = place["i"], place["j"], place["l"]
        layer = self.conversion.local(self.layer, wires.rank, self.layer.state_dict())  # type: ignore[arg-type]
        local = self.x[rows(m, q, i, j)][:, part(k, q, depth)].clone().requires_grad_()
        with computing(wires, m, keep_gathered=self.keep) as share:
            work: Work = share(self.x).work
            x = Spread(local, (m, k), (Split(("i", "j"), m), Split(("l",), k)), work)
            y = layer(x)
        forward = wires.received
        y.local.backward(self.dy[rows(m, q, i, depth)][:, part(n, q, j)])
        return y.local.detach(), local.grad, layer.weight.grad, forward, wires.received - forward


@each("kind", ["1d", "2d", "3d"])
def test_a_transformer_with_tied_weights(kind: Kind) -> None:
    chain = build_transformer(2)
    equals_one_process(Grid(kind, 2), chain.layers, chain_loss(chain), sentences(8), 8)  # type: ignore[arg-type]


def chain_loss(chain: Any) -> Callable[[Any, Any], torch.Tensor]:
    def loss(layers: Any, batch: torch.Tensor) -> torch.Tensor:
        values = chain.inputs(batch)
        for layer in layers:
            values = layer(values)
        return chain.loss(values, batch)

    return loss


def test_a_transformer_over_gloo() -> None:
    chain = build_transformer(2)
    equals_one_process(Grid("3d", 2), chain.layers, chain_loss(chain), sentences(8), 8, run=over_gloo)  # type: ignore[arg-type]


@every_grid
@each("num_samples", [36, 7])
def test_a_language_model_of_parts_that_are_the_users_own(grid: Grid, num_samples: int) -> None:
    """Fused projection, attention by hand, learned positions, RMS norm, a vocabulary that nothing divides."""
    torch.manual_seed(0)
    tokens = torch.randint(31, (num_samples, 6), generator=torch.Generator().manual_seed(3))
    spread = equals_one_process(grid, LanguageModel(), next_token, tokens, num_samples)
    if grid.kind == "3d" and num_samples == 36:
        for name in ("blocks.0.qkv.weight", "blocks.0.proj.weight", "blocks.1.up.weight"):
            (share,) = set(spread.shares[name])
            assert share * grid.num_ranks == spread.gradients[name].numel()


def next_token(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    logits = model(tokens[:, :-1])
    return F.cross_entropy(logits.reshape(-1, 31), tokens[:, 1:].reshape(-1), ignore_index=3, label_smoothing=0.1)


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(31, 36, padding_idx=29)
        self.places = nn.Embedding(8, 36)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.scale = nn.Parameter(1 + 0.1 * torch.randn(36))
        self.head = nn.Linear(36, 31)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(36)
        self.qkv, self.proj = nn.Linear(36, 108), nn.Linear(36, 36, bias=False)
        self.up, self.down = nn.Linear(36, 144), nn.Linear(72, 36)
        self.register_buffer("mask", torch.ones(8, 8).tril().bool())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samples, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).split(width, dim=-1)
        q, k, v = (part.view(samples, length, 6, width // 6).transpose(1, 2) for part in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(width // 6)
        scores = scores.masked_fill(~self.mask[:length, :length], float("-inf"))
        mixed = F.softmax(scores, dim=-1) @ v
        x = x + self.proj(mixed.transpose(1, 2).contiguous().view(samples, length, width))
        gate, value = self.up(x).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * value)


@every_grid
def test_a_fused_projection_that_is_divided_by_a_view(grid: Grid) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(18, 54), nn.Linear(18, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(x).view(SAMPLES, 4, 3, 6, 3).permute(2, 0, 3, 1, 4).unbind(0)
            made = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(made.transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    equals_one_process(
        grid, Attention(), lambda model, batch: model(batch).square().mean(), normal(SAMPLES, 4, 18)
    )


@every_grid
def test_multi_head_attention_with_masks(grid: Grid) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(18, 6, batch_first=True)

        def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
            causal = nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64)
            return self.attention(x, x, x, key_padding_mask=padding, attn_mask=causal, need_weights=False)[0]

    torch.manual_seed(0)
    padding = torch.zeros(SAMPLES, 4, dtype=torch.bool)
    padding[::3, 3] = True
    batch = {"x": normal(SAMPLES, 4, 18), "padding": padding}
    equals_one_process(grid, Masked(), lambda model, b: model(b["x"], b["padding"]).square().mean(), batch)


@every_grid
def test_the_order_of_construction_does_not_matter(grid: Grid) -> None:
    """A trap of the public implementation: constructors swap the groups, so layers have to be made in order."""

    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.third, self.first, self.second = nn.Linear(18, 1), nn.Linear(18, 36), nn.Linear(36, 18)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.third(self.second(self.first(x)))

    model = Backwards()
    equals_one_process(grid, model, squares, features(18))
    roles = {n: p.role for n, p in plan(model, grid, squares, features(18).double(), SAMPLES).placements.items()}
    if grid.kind != "2d":
        assert roles["first.weight"] == roles["third.weight"] == "linear weight, A"
        assert roles["second.weight"] == "linear weight, B"


@every_grid
def test_a_residual_around_a_single_layer_changes_the_layout_back(grid: Grid) -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.out = nn.Linear(18, 18), nn.Linear(18, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.layer(x)
            return self.out(x + torch.relu(self.layer(x)))

    torch.manual_seed(0)
    equals_one_process(grid, Residual(), squares, features(18))


@each("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_no_precision_is_forced(dtype: torch.dtype) -> None:
    """A trap of the public implementation: half precision whatever the model has."""
    model, batch = nn.Linear(4, 4).to(dtype), normal(8, 4).to(dtype)
    seen = []

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        made = model(batch)
        seen.append(made.dtype)
        return made.square().mean()

    outcome = compute_on(Grid("3d", 2), model, loss, batch, 8)
    assert set(seen) == {dtype}
    assert outcome.gradients["weight"].dtype == dtype


def test_layer_norm_keeps_its_digits_where_the_mean_is_large() -> None:
    """E[x^2] - E[x]^2 would lose all but four digits of the variance here."""
    x = 1e6 + normal(8, 4)
    model = nn.LayerNorm(4).double()

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return (model(batch + 0 * nn.functional.linear(batch, eye)) * normal(8, 4, seed=5)).sum()

    eye = torch.eye(4, dtype=torch.float64)
    assert compute_on(Grid("1d", 2), model, loss, x, 8).loss == pytest.approx(
        compute_alone(model, loss, x).loss, abs=1e-8
    )


@cubes
def test_gathered_inputs_and_weights_are_not_kept_unless_asked_for(grid: Grid) -> None:
    """A trap of the public implementation: they make activations of 1/q^2 where 1/q^3 is promised."""
    model, x = nn.Linear(36, 54, bias=False).double(), normal(SAMPLES, 36)
    conversion = plan(model, grid, lambda model, batch: model(batch).sum(), x, SAMPLES)

    def kept(keep: bool) -> set[int]:
        sizes: list[int] = []

        def note(saved: torch.Tensor) -> torch.Tensor:
            sizes.append(saved.numel())
            return saved

        def watch(wires: Wires) -> None:
            layer = conversion.local(model, wires.rank, model.state_dict())  # type: ignore[arg-type]
            hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved)
            with computing(wires, SAMPLES, keep_gathered=keep) as share, hooks:
                layer(share(x)).sum()

        simulate(grid, watch)
        return set(sizes)

    q, inputs, weights = grid.side, SAMPLES * 36, 36 * 54
    assert kept(False) == {inputs // q**3, weights // q**3}
    assert kept(True) == {inputs // q**2, weights // q**2}


@every_grid
def test_layer_norms_blocks_are_put_together_again_as_they_were(grid: Grid) -> None:
    """A trap of the public implementation: its loader transposes a weight of one dimension."""
    model = nn.Sequential(nn.Linear(18, 36), nn.Linear(36, 18), nn.LayerNorm(18)).double()
    conversion = plan(model, grid, lambda m, batch: m(batch).sum(), normal(SAMPLES, 18), SAMPLES)
    for name, values in model.named_parameters():
        blocks = [take(values.detach(), conversion.block(name, rank)) for rank in range(grid.num_ranks)]
        assert torch.equal(together(conversion, name, blocks), values)


@every_grid
@each("padding", [0, 17, -1])
def test_a_padding_index_counts_rows_of_the_whole_table(grid: Grid, padding: int) -> None:
    """A trap of the public implementation: the index, of the whole table, is used on a rank's own rows."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(36, 18, padding_idx=padding), nn.Linear(18, 36))
    tokens = torch.arange(36 * 3).view(36, 3) % 36
    spread = equals_one_process(grid, model, lambda m, batch: m(batch).square().mean(), tokens)
    gradient = spread.gradients["0.weight"]
    assert not gradient[padding].any()
    assert gradient.any(dim=1).sum() == 35


@every_grid
@each("reduction", ["mean", "sum", "none"])
def test_cross_entropy_of_large_logits(grid: Grid, reduction: str) -> None:
    """A row of logits around 1,000 overflows unless the maximum over all ranks' classes is taken off."""
    torch.manual_seed(0)
    model, targets = nn.Linear(18, 37), torch.arange(SAMPLES) % 37
    batch = {"x": 5000 * normal(SAMPLES, 18), "targets": targets.where(targets != 5, -100)}

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        made = F.cross_entropy(model(batch["x"]), batch["targets"], reduction=reduction)
        return (made * torch.arange(SAMPLES)).sum() / 1000 if reduction == "none" else made / 1000

    equals_one_process(grid, model, loss, batch)


@each(
    ("model", "words"),
    [
        (nn.Sequential(nn.Linear(18, 18), nn.BatchNorm1d(18)), ["1 (BatchNorm1d)", "batch_norm"]),
        (nn.Sequential(nn.Linear(18, 18), nn.Unflatten(1, (3, 6)), nn.Softmax(1)), ["2 (Softmax)", "softmax"]),
        (nn.Sequential(nn.Embedding(5, 4, max_norm=1.0)), ["0 (Embedding)", "max_norm"]),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(model: nn.Module, words: list[str]) -> None:
    batch = torch.ones(SAMPLES, 18).long() if isinstance(model[0], nn.Embedding) else torch.ones(SAMPLES, 18)
    with pytest.raises(TaskError) as refusal:
        plan(model, Grid("1d", 3), lambda m, b: m(b).sum(), batch, SAMPLES)
    for word in words:
        assert word in str(refusal.value)


@every_grid
@each("first", [nn.Embedding(8, 18), nn.Linear(4, 18)])
def test_flattened_positions_are_refused_before_a_linear_layer_and_their_mean_is_not(
    grid: Grid, first: nn.Module
) -> None:
    tokens = torch.arange(SAMPLES * 6).view(SAMPLES, 6) % 8
    batch = tokens if isinstance(first, nn.Embedding) else nn.functional.one_hot(tokens % 4, 4).float()
    flat = nn.Sequential(first, nn.Flatten(), nn.Linear(108, 18))
    with pytest.raises(TaskError) as refusal:
        plan(flat, grid, lambda model, batch: model(batch).sum(), batch, SAMPLES)
    said = f"2 (Linear): tensor parallelism cannot compute this step on a tensor of shape ({SAMPLES}, 108): its "
    assert str(refusal.value).startswith(f"{said}dimension 1 has 6 sections side by side (flattened positions, ")
    assert "take the mean over the positions instead of flattening them" in str(refusal.value)
    averaged = nn.Sequential(first, nn.Linear(18, 18))
    plan(averaged, grid, lambda model, batch: model[1](model[0](batch).mean(1)).sum(), batch, SAMPLES)


def test_heads_that_the_side_does_not_divide_are_refused() -> None:
    chain = build_transformer(1)
    with pytest.raises(TaskError, match="number of heads"):
        plan(chain.layers, Grid("3d", 3), chain_loss(chain), sentences(9), 9)  # type: ignore[arg-type]
