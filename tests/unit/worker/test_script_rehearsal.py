"""A script whose training would depend on the number of nodes is told so before its first step."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from cells import each
from oakum_worker.errors import SessionError, TaskError, TrainingWarning
from oakum_worker.randomness import keyed
from rehearsed_loops import (
    BATCH,
    SAMPLES,
    STEPS,
    Body,
    Centred,
    Language,
    Noisy,
    Stream,
    Texts,
    among_all,
    among_own,
    as_trainer,
    by_class,
    by_class_with_weight,
    by_token,
    by_token_with_weight,
    classifier,
    evaluated_norm,
    in_half_precision,
    mean,
    mixed_by_numpy,
    of_rounded_logits,
    padded,
    padded_in_front,
    sharpness_aware,
    total,
    train,
    under_autocast,
    with_a_gradient_of_all,
    with_a_small_term,
)
from rehearsed_loops import one_thread_and_fresh_warnings as one_thread_and_fresh_warnings

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


def clipped(session: Any, batch: Any, model: nn.Module) -> None:
    mean(session, batch, model)
    nn.utils.clip_grad_norm_(model.parameters(), 1e6)


def scaled(session: Any, batch: Any, model: nn.Module) -> None:
    mean(session, batch, model)
    weight = model[0].weight  # type: ignore[index]
    weight.grad = weight.grad / weight.grad.norm()


def clipped_between(session: Any, batch: Any, model: nn.Module) -> None:
    clipped(session, batch, model)
    mean(session, batch, model)


def penalised_before(session: Any, batch: Any, model: nn.Module) -> None:
    sum(p.square().sum() for p in model.parameters()).backward()  # type: ignore[union-attr]
    mean(session, batch, model)


def penalised_after(session: Any, batch: Any, model: nn.Module) -> None:
    mean(session, batch, model)
    sum(p.square().sum() for p in model.parameters()).backward()  # type: ignore[union-attr]


@each("body", [clipped, scaled, clipped_between, penalised_before, penalised_after])
def test_gradients_that_are_not_made_by_the_session_alone_are_refused(body: Body) -> None:
    with pytest.raises(
        SessionError, match=r"Give each loss to session\.backward\(\), and call session\.reduce\(\)"
    ):
        train(body, classifier())


def test_gradients_are_clipped_once_they_are_summed_and_dropped_at_any_time() -> None:
    def summed(session: Any, batch: Any, model: nn.Module) -> None:
        model.zero_grad()
        mean(session, batch, model)
        model[2].zero_grad(set_to_none=session.steps % 2 == 0)  # type: ignore[index, operator]
        mean(session, batch, model)
        session.reduce()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    assert len(train(summed, classifier())) == STEPS


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
