"""A script whose training would depend on the number of nodes is told so before its first step."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

import oakum
from cells import each
from oakum_worker.errors import SessionError, TaskError, TrainingWarning
from oakum_worker.gathering import gather_batch, own_rows
from oakum_worker.randomness import keyed
from oakum_worker.rehearsal import process_copy, script
from oakum_worker.session.hosts import HOST, RankHost
from oakum_worker.spec import TrainerSpec
from oakum_worker.step.turns import turns_alone

SAMPLES, BATCH, WIDTH, CLASSES, VOCABULARY = 40, 12, 8, 3, 16
STEPS = -(-SAMPLES // BATCH)

Body = Callable[[Any, Any, nn.Module], None]
"""The passes of an iteration: (session, batch, model)."""


@pytest.fixture(autouse=True)
def _one_thread_and_fresh_warnings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(keyed, "_warned", set())
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


class Points(torch.utils.data.Dataset[Any]):
    """Vectors with a class each."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(1)
        self.vectors = torch.randn(SAMPLES, WIDTH, generator=draw)
        self.classes = torch.randint(CLASSES, (SAMPLES,), generator=draw)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return self.vectors[index], self.classes[index]


class Noisy(Points):
    """Vectors with noise from a generator that the data set keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(0)

    def __getitem__(self, index: int) -> Any:
        return self.vectors[index] + float(self.rng.normal()), self.classes[index]


class Texts(torch.utils.data.Dataset[Any]):
    """Sequences of 3 to 17 tokens, from 1 on."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(1)
        lengths = torch.randint(3, 18, (SAMPLES,), generator=draw).tolist()
        self.texts = [torch.randint(1, VOCABULARY, (length,), generator=draw) for length in lengths]

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return self.texts[index]


class Stream:
    """The texts as a stream, which is read from any place on."""

    def __len__(self) -> int:
        return SAMPLES

    def samples(self, epoch: int, start: int) -> Iterator[torch.Tensor]:
        return iter(Texts().texts[start:])


def padded(texts: list[torch.Tensor]) -> torch.Tensor:
    return pad_sequence(texts, batch_first=True)


def padded_in_front(texts: list[torch.Tensor]) -> torch.Tensor:
    return pad_sequence([one.flip(0) for one in texts], batch_first=True).flip(1)


def classifier(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 16), *layers, nn.ReLU(), nn.Linear(16, CLASSES))


class Language(nn.Module):
    """Predicts each next token by causal attention with dropout, or by packed recurrent layers."""

    def __init__(self, *, recurrent: bool = False) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, 16), nn.Linear(16, VOCABULARY)
        self.layers = nn.LSTM(16, 16, 2, dropout=0.3, batch_first=True) if recurrent else None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        if self.layers is not None:
            lengths = (tokens != 0).sum(1)
            packed = pack_padded_sequence(hidden, lengths, batch_first=True, enforce_sorted=False)
            hidden, _ = pad_packed_sequence(self.layers(packed)[0], batch_first=True, total_length=tokens.shape[1])
            return self.head(hidden)
        heads = hidden.unflatten(-1, (2, -1)).transpose(1, 2)
        mask = (tokens != 0)[:, None, None] & torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()
        mixed = F.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask, dropout_p=0.2)
        return self.head(hidden + mixed.transpose(1, 2).flatten(2))


class Centred(nn.Module):
    """Subtracts a mean that it keeps of what it has seen."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        centred = x - self.mean
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), 0.1)
        return centred


def next_tokens(model: nn.Module, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of the tokens' losses, and their number."""
    targets = tokens[:, 1:].masked_fill(tokens[:, 1:] == 0, -100)
    logits = model(tokens[:, :-1]).transpose(1, 2)
    return F.cross_entropy(logits, targets, reduction="sum", ignore_index=-100), (targets != -100).sum()


def mean(session: Any, batch: Any, model: nn.Module) -> None:
    session.backward(F.cross_entropy(model(batch[0]), batch[1]))


def total(session: Any, batch: Any, model: nn.Module) -> None:
    session.backward(F.cross_entropy(model(batch[0]), batch[1], reduction="sum"))


WEIGHTS = torch.tensor([1.0, 8.0, 1.0])


def by_class(session: Any, batch: Any, model: nn.Module) -> None:
    session.backward(F.cross_entropy(model(batch[0]), batch[1], weight=WEIGHTS))


def by_class_with_weight(session: Any, batch: Any, model: nn.Module) -> None:
    loss = F.cross_entropy(model(batch[0]), batch[1], weight=WEIGHTS, reduction="sum")
    session.backward(loss, weight=WEIGHTS[batch[1]].sum())


def by_token(session: Any, batch: Any, model: nn.Module) -> None:
    loss, count = next_tokens(model, batch)
    session.backward(loss / count)


def by_token_with_weight(session: Any, batch: Any, model: nn.Module) -> None:
    loss, count = next_tokens(model, batch)
    session.backward(loss, weight=count)


def among_own(session: Any, batch: Any, model: nn.Module) -> None:
    out = F.normalize(model(batch[0]), dim=1)
    session.backward(F.cross_entropy(out @ out.T / 0.1, torch.arange(len(out))))


def among_all(session: Any, batch: Any, model: nn.Module) -> None:
    out = F.normalize(model(batch[0]), dim=1)
    session.backward(F.cross_entropy(out @ gather_batch(out).T / 0.1, own_rows(out)))


def mixed_by_numpy(session: Any, batch: Any, model: nn.Module) -> None:
    factors = torch.tensor(np.random.uniform(0.5, 1.5, (len(batch[0]), 1)), dtype=torch.float32)
    session.backward(F.cross_entropy(model(batch[0] * factors), batch[1]))


def with_a_gradient_of_all(session: Any, batch: Any, model: nn.Module) -> None:
    out = model(batch[0])
    shared = out.mean().square()
    session.backward(F.cross_entropy(out, batch[1]) + shared - shared.detach())


def in_half_precision(session: Any, batch: Any, model: nn.Module) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(model(batch[0]), batch[1])
    session.backward(loss)


def of_rounded_logits(session: Any, batch: Any, model: nn.Module) -> None:
    session.backward(F.cross_entropy(model(batch[0].double()).float(), batch[1]))


def evaluated_norm(session: Any, batch: Any, model: nn.Module) -> None:
    model.train()
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm1d):
            layer.eval()
    mean(session, batch, model)


def train(body: Body, model: nn.Module, dataset: Any = None, **options: Any) -> list[float]:
    """Losses of the steps of a plain loop."""
    losses = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with oakum.session(model, optimizer, dataset or Points(), **({"batch_size": BATCH} | options)) as session:
        for batch in session:
            body(session, batch, model)
            if session.step():
                losses.append(session.loss)
    return losses


def as_trainer(body: Body, model: nn.Module, **fields: Any) -> list[float]:
    """The same as the only rank of a trainer that may have more."""
    spec = TrainerSpec.model_validate(
        {"name": "loop", "script": "loop.py", "epochs": 1, "global_batch": BATCH} | fields
    )
    token = HOST.set(RankHost(spec, turns_alone, lambda: None))
    try:
        return train(body, model, batch_size=None)
    finally:
        HOST.reset(token)


def with_a_small_term(session: Any, batch: Any, model: nn.Module) -> None:
    """As a mixture of experts balances their loads: by a product of means over the batch."""
    out = model(batch[0])
    loads = F.one_hot(out.argmax(1), CLASSES).double().mean(0) * out.softmax(1).mean(0)
    session.backward(F.cross_entropy(out, batch[1]) + 1e-3 * loads.sum())


def sharpness_aware(session: Any, batch: Any, model: nn.Module) -> None:
    loss = F.cross_entropy(model(batch[0]), batch[1])
    with torch.no_grad():
        for p, slope in zip(model.parameters(), torch.autograd.grad(loss, [*model.parameters()]), strict=True):
            p.add_(slope)
    mean(session, batch, model)


def under_autocast(session: Any, batch: Any, model: nn.Module) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        by_token(session, batch, model)


REFUSED: dict[str, tuple[Body, Callable[[], nn.Module], dict[str, Any], str]] = {
    "a sum": (total, classifier, {}, "It is the sum over the samples: take reduction='mean'"),
    "weights moved by SAM": (sharpness_aware, classifier, {}, "weights between its passes, as SAM does"),
    "weights of classes": (by_class, classifier, {}, r"give session.backward\(total, weight=items\) the sum"),
    "a mean over tokens": (by_token, Language, {"dataset": Texts(), "collate": padded}, "no mean over samples"),
    "a mean over tokens of a stream": (
        by_token,
        Language,
        {"dataset": Stream(), "collate": padded},
        "no mean over samples",
    ),
    "a mean over tokens in half precision": (
        by_token,
        lambda: Language().bfloat16(),
        {"dataset": Texts(), "collate": padded},
        "no mean over samples",
    ),
    "a mean over tokens under autocast": (
        under_autocast,
        Language,
        {"dataset": Texts(), "collate": padded},
        "no mean over samples",
    ),
    "a small term of the share": (with_a_small_term, classifier, {}, "no mean over samples"),
    "negatives of the share": (among_own, classifier, {}, "gather_batch has them"),
    "NumPy's draws": (mixed_by_numpy, classifier, {}, "draws from NumPy's or Python's generator"),
    "a gradient of all samples": (
        with_a_gradient_of_all,
        classifier,
        {},
        r"gradient of .* not that of its parts",
    ),
    "a generator of the data set": (mean, classifier, {"dataset": Noisy()}, r"dataset\.rng"),
    "a buffer of the share": (mean, lambda: classifier(Centred()), {}, "1.mean is set by a forward pass"),
    "padding in front": (
        by_token_with_weight,
        Language,
        {"dataset": Texts(), "collate": padded_in_front},
        "has to come behind the sample",
    ),
    "packed sequences with dropout": (
        by_token_with_weight,
        lambda: Language(recurrent=True),
        {"dataset": Texts(), "collate": padded},
        "torch's lstm cannot draw for one sample at a time",
    ),
}


@each("name", REFUSED)
def test_what_depends_on_the_number_of_nodes_is_refused_with_what_to_write(name: str) -> None:
    body, build, options, said = REFUSED[name]
    keyed._warned.clear()
    with pytest.raises(SessionError, match=said) as refused:
        train(body, build(), **options)
    assert "`exact: false` into the trainer's spec" in str(refused.value)


EXACT: dict[str, tuple[Body, Callable[[], nn.Module], dict[str, Any]]] = {
    "a mean": (mean, classifier, {}),
    "a mean, with dropout": (mean, lambda: classifier(nn.Dropout(0.5)), {}),
    "a mean in half precision": (in_half_precision, classifier, {}),
    "a mean of what was rounded": (of_rounded_logits, lambda: classifier().double(), {}),
    "weights of classes": (by_class_with_weight, classifier, {}),
    "tokens, attention with dropout": (by_token_with_weight, Language, {"dataset": Texts(), "collate": padded}),
    "tokens of a stream": (by_token_with_weight, Language, {"dataset": Stream(), "collate": padded}),
    "negatives of the batch": (among_all, classifier, {}),
    "BatchNorm that is evaluated": (evaluated_norm, lambda: classifier(nn.BatchNorm1d(16)), {}),
    "GroupNorm": (mean, lambda: classifier(nn.GroupNorm(4, 16)), {}),
    "one sample": (mean, classifier, {"batch_size": 1}),
}


@each("name", EXACT)
def test_what_does_not_depend_on_it_trains_without_a_word(name: str) -> None:
    body, build, options = EXACT[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error", TrainingWarning)
        losses = train(body, build(), **options)
    assert len(losses) == -(-SAMPLES // options.get("batch_size", BATCH))


def test_the_same_is_found_where_no_process_can_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    expected = train(mean, classifier(nn.Dropout(0.5)))
    monkeypatch.setattr(script, "can_fork", lambda: False)
    torch.manual_seed(0)
    assert train(mean, classifier(nn.Dropout(0.5))) == expected
    with pytest.raises(SessionError, match="no mean over samples"):
        train(by_class, classifier())


def test_the_same_is_found_where_copies_compute_no_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_copy, "_computes_gradients", lambda: False)
    assert len(train(mean, classifier())) == STEPS
    with pytest.raises(SessionError, match="no mean over samples"):
        train(by_class, classifier())


class TestBatchNorm:
    def test_is_refused_where_a_trainer_may_have_several_ranks(self) -> None:
        with pytest.raises(SessionError, match=r"1 is BatchNorm.*batch_norm: synchronised"):
            as_trainer(mean, classifier(nn.BatchNorm1d(16)))

    def test_is_trained_where_the_spec_says_how(self) -> None:
        fields = {"parallel": {"batch_norm": "synchronised"}}
        assert len(as_trainer(mean, classifier(nn.BatchNorm1d(16)), **fields)) == STEPS
        assert len(as_trainer(mean, classifier(nn.BatchNorm1d(16)), max_nodes=1)) == STEPS

    def test_is_warned_of_alone_since_a_spec_may_say_how(self) -> None:
        model = classifier(nn.BatchNorm1d(16))
        with pytest.warns(TrainingWarning, match="on several nodes it would be another training"):
            train(mean, model)
        assert model[1].training
        assert int(model[1].num_batches_tracked) == STEPS


def test_who_says_that_it_need_not_be_exact_is_warned() -> None:
    with pytest.warns(TrainingWarning, match="no mean over samples"):
        assert len(train(by_class, classifier(), exact=False)) == STEPS
    with pytest.warns(TrainingWarning, match="no mean over samples"):
        assert len(as_trainer(by_class, classifier(), exact=False)) == STEPS
    assert len(train(by_class, classifier(), exact=True, batch_size=1)) == SAMPLES


def test_copies_leave_nothing_behind(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[int] = []
    written = (tmp_path / "log").open("w", encoding="utf-8", buffering=1)
    read = (tmp_path / "numbers").open("w+b", buffering=0)
    read.write(bytes(range(100)))
    read.seek(0)

    def body(session: Any, batch: Any, model: nn.Module) -> None:
        seen.append(len(batch[0]))
        print("a step", flush=True)
        written.write("a step\n")
        mean(session, batch, model)
        assert read.read(1) == bytes([len(seen) - 1])

    train(body, classifier())
    assert seen == [12, 12, 12, 4]
    assert capfd.readouterr().out == "a step\n" * STEPS
    assert (tmp_path / "log").read_text(encoding="utf-8") == "a step\n" * STEPS


def test_what_the_loop_raises_is_raised_once_by_the_loop_itself() -> None:
    raised: list[int] = []

    def body(session: Any, batch: Any, model: nn.Module) -> None:
        raised.append(os.getpid())
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        train(body, classifier())
    assert raised == [os.getpid()]


def test_a_copy_that_does_not_end_is_ended_and_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "_PATIENCE_S", 0.2)
    own = os.getpid()

    def body(session: Any, batch: Any, model: nn.Module) -> None:
        if os.getpid() != own:
            time.sleep(600)
        by_class(session, batch, model)

    with pytest.warns(TrainingWarning, match=r"not rehearsed.* had not computed 12 samples after 0\.2 s"):
        assert len(train(body, classifier())) == STEPS


def test_a_copy_that_would_make_files_is_ended_before_it_does_and_told_of(tmp_path: Path) -> None:
    made: list[Path] = []

    def body(session: Any, batch: Any, model: nn.Module) -> None:
        made.append(tmp_path / f"step-{session.steps}")
        made[-1].mkdir()
        mean(session, batch, model)

    with pytest.warns(TrainingWarning, match=r"not rehearsed.* calls os\.mkdir before its step"):
        train(body, classifier())
    assert sorted(tmp_path.iterdir()) == made == [tmp_path / f"step-{number}" for number in range(STEPS)]


def test_gradients_that_are_clipped_before_they_are_summed_are_refused() -> None:
    def clipped(session: Any, batch: Any, model: nn.Module) -> None:
        mean(session, batch, model)
        nn.utils.clip_grad_norm_(model.parameters(), 1e6)

    def summed(session: Any, batch: Any, model: nn.Module) -> None:
        mean(session, batch, model)
        session.reduce()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    with pytest.raises(SessionError, match=r"Call session\.reduce\(\) first"):
        train(clipped, classifier())
    assert len(train(summed, classifier())) == STEPS


def test_a_copy_ends_with_its_parent() -> None:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        if isinstance(process_copy.fork(0.5), process_copy.Child):
            os.write(writing, b"the child's is cut off")
            time.sleep(600)
        os._exit(0)
    os.close(writing)
    assert os.waitpid(pid, 0)[1] == 0
    assert os.read(reading, 1) == b""
    os.close(reading)


@each("batch_norm", [False, True])
def test_what_sees_the_whole_batch_is_refused_in_parts(batch_norm: bool) -> None:
    def in_parts(session: Any, batch: Any, model: nn.Module) -> None:
        for first in range(0, session.num_samples, 2):
            count = min(2, session.num_samples - first)
            with session.part(first, count):
                part = [one[first : first + count] for one in batch]
                (mean if batch_norm else among_all)(session, part, model)

    fields = {"parallel": {"batch_norm": "synchronised"}} if batch_norm else {}
    model = classifier(nn.BatchNorm1d(16) if batch_norm else nn.Identity())
    with pytest.raises(TaskError, match="compute them at once, by a larger batch_size of the data loader"):
        as_trainer(in_parts, model, **fields)
