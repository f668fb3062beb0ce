"""Which digit is it? The loop of `woven_plain.py`, alone or on nodes that come and go."""

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from digits.classifier import build_model
from digits.data import split
from oakum.lightning import Fabric

torch.manual_seed(0)
train, held_out = split()
fabric = Fabric(accumulated=4, epochs=20)
model = build_model(width=32)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.995)
model, optimizer = fabric.setup(model, optimizer)
fabric.keep(scheduler)
loader = fabric.setup_dataloaders(DataLoader(train, batch_size=32, shuffle=True))

for epoch in fabric.epochs():
    for images, labels in loader:
        is_accumulating = fabric.is_accumulating
        with fabric.no_backward_sync(model, enabled=is_accumulating):
            fabric.backward(cross_entropy(model(images), labels))
        if not is_accumulating:
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    with torch.no_grad():
        images, labels = held_out[:]
        right = (model(images).argmax(1) == labels).float().mean()
    fabric.print(f"epoch {epoch + 1}: {right:.1%} right")
