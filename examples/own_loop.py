"""Which digit is it? The loop of `own_loop_plain.py`, alone or on nodes that come and go."""

import torch
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import oakum
from digits.classifier import build_model
from digits.data import split

torch.manual_seed(0)
train, held_out = split()
model = build_model(width=32)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.995)
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))

with oakum.session(model, optimizer, train, batch_size=128, epochs=20, state=[scheduler, average]) as session:
    for images, labels in session:
        loss = cross_entropy(model(images), labels)
        session.backward(loss)
        if not session.step():
            continue
        scheduler.step()
        average.update_parameters(model)
        if session.steps % 60 == 0 and session.is_first_rank:
            with torch.no_grad():
                images, labels = held_out[:]
                right = (average(images).argmax(1) == labels).float().mean()
            print(f"step {session.steps}: loss {session.loss:.3f}, {right:.1%} right")
