"""The client for scripts and notebooks, `from oakum import Client`: the CLI's own, and what its commands do beyond
single calls."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from oakum_client.exporting import ExportError, export_model, folder_to_export
from oakum_client.rest.client import OakumClient
from oakum_client.rest.errors import ClientError
from oakum_client.trainer_ends import wait_for_ends
from oakum_service.api.schemas.trainers import TrainerView
from oakum_worker.errors import SpecError
from oakum_worker.spec import TrainerSpec, explain, read_spec

if TYPE_CHECKING:
    from oakum_worker.checkpoint.export import Exported

__all__ = ["Client", "ClientError", "ExportError", "TrainerView"]

Spec = TrainerSpec | Mapping[str, Any] | str | os.PathLike[str]
"""A trainer's spec: a `TrainerSpec`, its fields by name, or a YAML or JSON file."""


class Client(OakumClient):
    """A connection to an Oakum service, from Python.

        from oakum import Client

        with Client() as client:  # OAKUM_URL and OAKUM_TOKEN, or the service whose folder this is
            client.submit("digits.yaml")
            (view,) = client.wait("digits")
            losses = [point.loss for point in client.series("digits").points]
            client.export("digits", "digits.safetensors", step="best")

    Every method raises a `ClientError` where the service refuses or cannot be reached.
    """

    def submit(self, spec: Spec, idempotency_key: str | None = None, begin_from: str | None = None) -> TrainerView:
        """Submit a trainer; returns its document. The trainer is not tried first, as `oakum submit` does.

        A relative `workdir` of a file counts from the file's folder, that of fields from the present one.
        `begin_from` and `idempotency_key` are those of `OakumClient.submit`. Raises `SpecError` for what is no
        spec, with one line for each thing to change.
        """
        return super().submit(_spec_of(spec), idempotency_key, begin_from)

    def wait(self, *trainers: str, timeout_s: float | None = None, first_only: bool = False) -> list[TrainerView]:
        """Wait until the trainers have ended, with `first_only` until one of them has. Returns the documents of
        those that have, in the order of their ends; `state` says how each ended.

        A restart of the service is waited for. Raises `TimeoutError` where they have not ended within `timeout_s`
        seconds.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        ended, left = wait_for_ends(self, trainers, until, first_only=first_only)
        if left and not (first_only and ended):
            raise TimeoutError(f"not ended within {timeout_s:g} s: {', '.join(left)}")
        return ended

    def export(
        self, trainer: str, output: str | os.PathLike[str], *, step: int | str | None = None, force: bool = False
    ) -> Exported:
        """Write the weights of the trainer's newest checkpoint to a file, whose suffix chooses the format as for
        `oakum export`, or to a folder for `from_pretrained` where the name has no suffix. `step` takes the
        checkpoint of that step, or the `best`. Returns what was written.

        Needs torch, and the folder of the checkpoints on this machine. Raises `ExportError` where there is no such
        checkpoint, or where `output` exists and `force` is not given.
        """
        target = Path(output)
        if target.exists() and not force:
            raise ExportError(f"{target} is there already: choose another name, or give force=True")
        view = self.trainer(trainer)
        folder = folder_to_export(view, None if step is None else str(step))
        return export_model(folder, target, is_exact=view.spec.exact)


def _spec_of(given: Spec) -> TrainerSpec:
    if isinstance(given, TrainerSpec):
        return given
    if not isinstance(given, Mapping):
        return read_spec(Path(given))
    fields = {**given, "workdir": str(Path(given.get("workdir") or ".").resolve())}
    try:
        return TrainerSpec.model_validate(fields)
    except ValidationError as error:
        raise SpecError("\n".join(explain(error))) from error
