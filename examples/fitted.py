"""Which digit is it? The LightningModule of `fitted_plain.py`, alone or on nodes that come and go."""

import torch
from lightning import LightningModule
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from digits.classifier import build_model
from digits.data import split
from oakum.lightning import Trainer


class Digits(LightningModule):
    """A network of convolutions, trained by stochastic gradient descent."""

    def __init__(self):
        super().__init__()
        self.network = build_model(width=32)

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = cross_entropy(self.network(images), labels)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        self.log("accuracy", (self.network(images).argmax(1) == labels).float().mean())

    def on_validation_epoch_end(self):
        self.print(f"after {self.global_step} steps: {self.trainer.callback_metrics['accuracy']:.1%} right")

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", factor=0.5, patience=2)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "accuracy"}}


torch.manual_seed(0)
train, held_out = split()
options = {"devices": 1, "logger": False, "enable_checkpointing": False}
trainer = Trainer(max_epochs=20, accumulate_grad_batches=4, gradient_clip_val=1.0, **options)
trainer.fit(Digits(), DataLoader(train, batch_size=32, shuffle=True), DataLoader(held_out, batch_size=512))
