"""An ordinary training script, with nothing of Oakum in it: a small vision transformer on handwritten digits.

python examples/porting/train.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

EPOCHS = 20


class ShiftedDigits(Dataset):
    """Images (1, 8, 8) with values from 0 to 1, each shifted by up to one pixel at random, and their labels."""

    def __init__(self) -> None:
        digits = load_digits()
        self.images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
        self.labels = torch.tensor(digits.target)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        shift = torch.randint(-1, 2, (2,)).tolist()
        return self.images[index].roll(shift, dims=(1, 2)), self.labels[index]


class VisionTransformer(nn.Module):
    """Logits (n, 10) from images (n, 1, 8, 8), cut into 16 patches."""

    def __init__(self, width: int = 64, depth: int = 2) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, kernel_size=2, stride=2)
        self.positions = nn.Parameter(0.02 * torch.randn(16, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth)
        self.head = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.encoder(tokens).mean(1))


def main() -> None:
    model, dataset = VisionTransformer(), ShiftedDigits()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS * -(-len(dataset) // 64))
    loader = DataLoader(dataset, batch_size=64, shuffle=True)
    for epoch in range(EPOCHS):
        for images, labels in loader:
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
