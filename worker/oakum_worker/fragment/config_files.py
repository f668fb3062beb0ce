"""The files that tell a fragment, or an array of fragments, what it is. Imports no torch."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from oakum_worker.errors import ConfigError, fault_of
from oakum_worker.fragment import CONFIG_NAME, START_OPTIONS
from oakum_worker.fragment_config import FragmentConfig

ARRAY_NAME = "array.json"


def write_config(folder: Path, config: FragmentConfig) -> Path:
    """Write the config into the folder, which is made if missing; only its owner can read it, since it holds the
    fragment's token. Options of the spec that have their default are left out, except `START_OPTIONS`: a worker
    of the previous version refuses options that it does not know. Nothing is left out where such a worker has to
    refuse the fragment: where it belongs to a user's account, since it would run the user's code in the service's
    account, and where it has a part of a node, since it would start the ranks of a whole one. Returns the file's
    path."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / CONFIG_NAME
    path.touch(mode=0o600, exist_ok=True)
    document = config.model_dump(mode="json")
    if config.run_as is None and config.num_ranks == config.spec.ranks_per_node:
        always = config.spec.model_dump(mode="json", include=set(START_OPTIONS))
        document["spec"] = always | config.spec.model_dump(mode="json", exclude_defaults=True)
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def read_config(path: Path) -> FragmentConfig:
    """Read a fragment's config. Raises `ConfigError` where it does not fit this version of the worker."""
    try:
        return FragmentConfig.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        from importlib.metadata import version

        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault_of(fault)}" for fault in error.errors())
        raise ConfigError(
            f"{path} cannot be used by Oakum {version('oakum')} on this node ({faults}): "
            f"install the service's version where the fragments run"
        ) from error


class FragmentArray(BaseModel):
    """The fragments of a job array: a file in submitit's folder, written before the array is submitted."""

    model_config = ConfigDict(frozen=True)

    fragments: tuple[str, ...]
    """Ids of the fragments, by index of the array's task."""
    addresses: dict[str, str]
    """Node -> its address, for the nodes that the scheduler may choose from."""
    node_variable: str = "SLURMD_NODENAME"
    """Environment variable in which a task finds the name of its node; the default is Slurm's."""
