"""Which digit is it? A plain PyTorch loop: validation after each epoch, a schedule, an average of the weights."""

import torch
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

from digits.classifier import build_model
from digits.data import split

torch.manual_seed(0)
train, held_out = split()
model = build_model(width=32)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.995)
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
loader = DataLoader(train, batch_size=128, shuffle=True)

steps = 0
for _ in range(20):
    for images, labels in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        steps += 1
        scheduler.step()
        average.update_parameters(model)
        if steps % 60 == 0:
            with torch.no_grad():
                images, labels = held_out[:]
                right = (average(images).argmax(1) == labels).float().mean()
            print(f"step {steps}: loss {loss:.3f}, {right:.1%} right")
