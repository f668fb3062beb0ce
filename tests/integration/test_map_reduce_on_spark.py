"""The jobs of trainers in rounds, on Spark in local mode: equal bits, and prepared blocks kept."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counting_rounds import NUM_BLOCKS, WIDTH, Counting, blocks
from oakum_worker.map_reduce.alone import run_round
from oakum_worker.map_reduce.job import Arrays
from oakum_worker.map_reduce.spark import distribute, spark_round
from prepared_rounds import LOWER_ROUNDS, TwoLayers, first_state

SUPPORT = Path(__file__).parents[1] / "support"
pytestmark = [pytest.mark.needs("spark"), pytest.mark.xdist_group("spark")]


@pytest.fixture(scope="module")
def context() -> Iterator[Any]:
    """Spark in local mode. The tests are a group, so that it starts once."""
    from pyspark import SparkConf, SparkContext

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        settings = SparkConf().setMaster("local[2]").set("spark.ui.enabled", "false")
        # Not by this process's environment: Spark's was taken from it when another test began to use Spark.
        settings.set("spark.executorEnv.PYTHONPATH", str(SUPPORT)).set("spark.driver.host", "127.0.0.1")
        started = SparkContext(conf=settings)
        yield started
        started.stop()


def trained(job: Any, state: dict[str, np.ndarray], spread: Any, rounds: int) -> dict[str, np.ndarray]:
    """The state after some rounds, on Spark if `spread` has distributed blocks, else in this process."""
    for number in range(rounds):
        state["round"] = np.asarray(number)
        total: Arrays = run_round(job, state, blocks()) if spread is None else spark_round(job, state, spread)
        state |= job.update(state, total)
    return state


def test_rounds_on_spark_have_the_bits_of_one_process(context: Any) -> None:
    found = set()
    for partitions in (0, 1, 3):
        spread = distribute(context, blocks(), partitions) if partitions else None
        state = {"centre": np.zeros(WIDTH, dtype=np.float32)}
        found.add(trained(Counting(), state, spread, 3)["centre"].tobytes())
    assert len(found) == 1


def test_spark_prepares_each_block_once_with_the_bits_of_one_process(context: Any, tmp_path: Path) -> None:
    def tell(number: int) -> None:
        with (tmp_path / str(number)).open("a", encoding="ascii") as file:
            file.write("prepared\n")

    rounds = LOWER_ROUNDS + 3
    on_spark = trained(TwoLayers(tell), first_state(), distribute(context, blocks(), 3), rounds)
    told = {int(path.name): path.read_text(encoding="ascii").count("prepared") for path in tmp_path.iterdir()}
    assert told == dict.fromkeys(range(NUM_BLOCKS), 1)
    alone = trained(TwoLayers(), first_state(), None, rounds)
    assert all(on_spark[name].tobytes() == alone[name].tobytes() for name in ("lower", "upper"))


def test_spark_prepares_anew_once_the_arrays_have_changed(context: Any) -> None:
    spread, job = distribute(context, blocks(), 2), TwoLayers()
    state = {**first_state(), "round": np.asarray(LOWER_ROUNDS)}
    for _ in range(2):
        total = spark_round(job, state, spread)
        assert total["pull"].tobytes() == run_round(job, state, blocks())["pull"].tobytes()
        state["lower"] += 0.5  # in place, while Spark keeps what it has prepared
