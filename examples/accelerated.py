"""Which digit is it? The loop of `accelerated_plain.py`, alone or on nodes that come and go."""

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from digits.classifier import build_model
from digits.data import split
from oakum.accelerate import Accelerator

torch.manual_seed(0)
train, held_out = split()
accelerator = Accelerator(gradient_accumulation_steps=4, epochs=20)
model = build_model(width=32)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.995)
loader = DataLoader(train, batch_size=32, shuffle=True)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

for epoch in accelerator.epochs():
    for images, labels in loader:
        with accelerator.accumulate(model):
            loss = cross_entropy(model(images), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    with torch.no_grad():
        images, labels = held_out[:]
        right = (model(images).argmax(1) == labels).float().mean()
    accelerator.print(f"epoch {epoch + 1}: {right:.1%} right")
