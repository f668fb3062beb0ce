"""The stacked machines of examples/rbm reach the floors that docs/trainer/map_reduce.md declares."""

from __future__ import annotations

import gzip
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.spec import TrainerSpec, read_spec
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import load_task
from running_service import EXAMPLES
from training_ranks import digest, step_together

LEAST_ACCURACY, MOST_ERROR = 0.97, 0.01


def spec_of(name: str, **arguments: str) -> TrainerSpec:
    return read_spec(EXAMPLES / f"{name}.yaml").model_copy(update={"arguments": arguments})


def trained(spec: TrainerSpec) -> TrainingLoop:
    torch.set_num_threads(1)
    loop = TrainingLoop(load_task(spec), spec)
    while not loop.finished:
        loop.step()
    return loop


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the stack's checkpoints. The tests that need it are a group, so that it is trained once."""
    folder = tmp_path_factory.mktemp("stack")
    loop = trained(spec_of("rbm-digits"))
    assert loop.evaluations.run()["reconstruction_mse"] < 0.05
    DurableCheckpoints(folder, keep=1).save(loop.state.state_dict(), loop.step_count)
    return folder


@pytest.mark.xdist_group("stack of machines")
@pytest.mark.parametrize(
    ("name", "metric"),
    [
        pytest.param("rbm-classifier", "accuracy", marks=pytest.mark.soak),
        ("rbm-autoencoder", "reconstruction_mse"),
    ],
)
def test_fine_tuning_from_the_stack_reaches_its_floor(name: str, metric: str, stack: Path) -> None:
    found = trained(spec_of(name, begin_from=str(stack))).evaluations.run()[metric]
    assert found >= LEAST_ACCURACY if metric == "accuracy" else found <= MOST_ERROR


def test_the_stack_has_the_same_bits_on_three_mappers() -> None:
    spec = spec_of("rbm-digits")
    loops = [TrainingLoop(load_task(spec), spec) for _ in range(3)]
    step_together(loops, 5)
    alone = TrainingLoop(load_task(spec), spec)
    for _ in range(5):
        alone.step()
    assert {digest(loop) for loop in loops} == {digest(alone)}


def test_mnist_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    from rbm.data import digits

    images = np.arange(3 * 28 * 28).astype(np.uint8)
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(struct.pack(">4i", 2051, 3, 28, 28) + images.tobytes())
    labels = struct.pack(">2i", 2049, 3) + bytes([7, 2, 1])
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    found, numbers = digits(str(tmp_path), held_out=True)
    assert np.array_equal(found, images.reshape(3, 784).astype(np.float32) / 255)
    assert numbers.tolist() == [7, 2, 1]
    with pytest.raises(FileNotFoundError, match="train-images-idx3-ubyte is missing"):
        digits(str(tmp_path))


def idx(magic: int, *sizes: int, values: bytes) -> bytes:
    """A file of MNIST's format."""
    return struct.pack(f">{1 + len(sizes)}i", magic, *sizes) + values


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (idx(2049, 2, 2, 2, values=bytes(8)), None, "begins with 2049 and not with 2051"),
        (idx(2051, 2, 2, 2, values=bytes(7)), None, "has 23 bytes and tells of 2 x 2 x 2 values"),
        (b"\0\0", None, "begins with 0 and not with 2051"),
        (None, gzip.compress(idx(2049, 2, values=bytes(2)))[:-9], "cannot be unpacked"),
        (None, gzip.compress(idx(2049, 3, values=bytes(3))), "has 2 images of `train` and 3 labels"),
    ],
    ids=["magic", "short", "empty", "cut off", "counts"],
)
def test_damaged_files_of_mnist_are_refused(
    images: bytes | None, labels: bytes | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    from rbm.data import digits

    whole = idx(2051, 2, 2, 2, values=bytes(8))
    (tmp_path / "train-images-idx3-ubyte").write_bytes(images or whole)
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(labels or gzip.compress(idx(2049, 2, values=bytes(2))))
    with pytest.raises(ValueError, match=message):
        digits(str(tmp_path))
