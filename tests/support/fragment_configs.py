"""Configs of fragments for tests without a service."""

from __future__ import annotations

from pathlib import Path

from oakum_worker.fragment_config import FragmentConfig
from oakum_worker.spec import TrainerSpec


def fragment_config(
    folder: Path, node: str = "n1", fragment: str = "f1", service_url: str = "http://service.test"
) -> FragmentConfig:
    """The config of a fragment on `node`, whose task does not exist."""
    return FragmentConfig(
        fragment=fragment,
        trainer="digits",
        node=node,
        node_address="10.0.0.1",
        service_url=service_url,
        token="a secret",
        spec=TrainerSpec(name="digits", entrypoint="a:b", global_batch=8, epochs=1),
        checkpoint_dir=str(folder / "checkpoints"),
    )
