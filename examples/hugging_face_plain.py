"""Which digit is it? A small vision transformer, trained by the Trainer of Hugging Face."""

import torch
from transformers import EvalPrediction, Trainer, TrainingArguments, ViTConfig, ViTForImageClassification, set_seed

from digits.data import split


def collate(samples: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
    images, labels = zip(*samples, strict=True)
    return {"pixel_values": torch.stack(images), "labels": torch.stack(labels)}


def accuracy(predicted: EvalPrediction) -> dict[str, float]:
    return {"accuracy": float((predicted.predictions.argmax(1) == predicted.label_ids).mean())}


set_seed(42)
sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
model = ViTForImageClassification(ViTConfig(image_size=8, patch_size=2, num_channels=1, num_labels=10, **sizes))
train, held_out = split()
arguments = TrainingArguments(
    output_dir="digits-vit",
    per_device_train_batch_size=32,
    gradient_accumulation_steps=4,
    num_train_epochs=20,
    learning_rate=2e-3,
    lr_scheduler_type="cosine",
    eval_strategy="epoch",
    logging_steps=12,
    save_strategy="no",
    remove_unused_columns=False,
    report_to="none",
)
trainer = Trainer(model, arguments, collate, train, held_out, compute_metrics=accuracy)
trainer.train()
