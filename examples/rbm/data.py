"""Digits as rows of pixels in 0..1: scikit-learn's 8 x 8 set, or MNIST's files where a folder is given."""

import gzip
import zlib
from pathlib import Path

import numpy as np

_MAGIC = {1: 2049, 3: 2051}


def digits(folder: str | None = None, held_out: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Images, float32 of shape (n, pixels), and their digits, int64: to train on, or those held out.

    `folder` has MNIST's four files (`train-images-idx3-ubyte` and so on, with or without `.gz`). Raises
    `FileNotFoundError` where one is missing, and `ValueError` where one is damaged or images and labels differ in
    number.
    """
    if folder is not None:
        name = "t10k" if held_out else "train"
        images = _read_idx(Path(folder), f"{name}-images-idx3-ubyte", 3)
        labels = _read_idx(Path(folder), f"{name}-labels-idx1-ubyte", 1)
        if len(images) != len(labels):
            raise ValueError(
                f"{folder} has {len(images)} images of `{name}` and {len(labels)} labels: fetch both anew"
            )
        return images.reshape(len(images), -1).astype(np.float32) / 255, labels.astype(np.int64)
    from digits.data import split

    rows, numbers = split()[int(held_out)].tensors
    return rows.flatten(1).numpy(), numbers.numpy()


def _read_idx(folder: Path, name: str, dimensions: int) -> np.ndarray:
    plain, packed = folder / name, folder / f"{name}.gz"
    if packed.exists():
        content = _unpacked(packed)
    elif plain.exists():
        content = plain.read_bytes()
    else:
        raise FileNotFoundError(f"{plain} is missing, and so is {packed.name}: give the folder of MNIST's files")
    size = 4 * (1 + dimensions)
    head = np.frombuffer(content[:size], ">i4") if len(content) >= size else np.zeros(1)
    if head[0] != _MAGIC[dimensions]:
        raise ValueError(
            f"{folder / name} begins with {head[0]:.0f} and not with {_MAGIC[dimensions]}, so it is no such file "
            "of MNIST: fetch it anew"
        )
    if len(content) != size + np.prod(head[1:], dtype=np.int64):
        raise ValueError(
            f"{folder / name} has {len(content)} bytes and tells of {' x '.join(map(str, head[1:]))} values: it "
            "is cut off or damaged, fetch it anew"
        )
    return np.frombuffer(content, np.uint8, offset=size).reshape(head[1:])


def _unpacked(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes())
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(
            f"{path} cannot be unpacked ({error}): it is cut off or damaged, fetch it anew"
        ) from error
