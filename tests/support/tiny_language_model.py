"""A tiny language model of Hugging Face, built from a configuration, with sentences of differing lengths."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import cross_entropy

NUM_SENTENCES = 53
_LENGTH = 10
_WORDS = 24


class Sentences:
    """`NUM_SENTENCES` random sentences, whose labels leave out differing numbers of words; notes which were
    read."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(3)
        self.words = torch.randint(0, _WORDS, (NUM_SENTENCES, _LENGTH), generator=draw)
        self.lengths = torch.randint(2, _LENGTH + 1, (NUM_SENTENCES,), generator=draw)

    def __len__(self) -> int:
        return NUM_SENTENCES

    def __getitem__(self, index: int) -> dict[str, Any]:
        labels = self.words[index].clone()
        labels[self.lengths[index] :] = -100
        return {"input_ids": self.words[index], "labels": labels}


def tiny_model(dropout: float = 0.0) -> Any:
    """A GPT-2 of some thousand float64 weights, which are equal at each call."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=_WORDS,
        n_positions=_LENGTH,
        n_embd=12,
        n_layer=1,
        n_head=2,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        attn_implementation="eager",
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config).double()
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=draw, dtype=p.dtype) * 0.2)
    return model


def loss_of_words(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    """The mean over the words to be predicted, in float64: the library's own computes it in float32."""
    logits = outputs.logits[:, :-1].flatten(0, 1)
    total = cross_entropy(logits, labels[:, 1:].flatten(), ignore_index=-100, reduction="sum")
    count = (labels[:, 1:] != -100).sum() if num_items_in_batch is None else num_items_in_batch
    return total / count
