"""`oakum export`: a trainer's model as one file, or as a folder of Hugging Face."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from oakum_client.cli.app import TRAINERS, CommandError, app, example
from oakum_client.cli.connection import connect
from oakum_client.cli.output import JsonFlag, TrainerRef
from oakum_client.cli.profile import need_torch


@app.command(
    rich_help_panel=TRAINERS,
    epilog=example(
        "oakum export digits -o digits.safetensors",
        "oakum export digits -o digits.pt --step best",
        "oakum export chat -o chat-model/",
    ),
)
def export(
    trainer: TrainerRef,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE|FOLDER",
            help="File to write: .safetensors, .pt or .pth. Without a suffix, a folder for from_pretrained.",
        ),
    ],
    step: Annotated[
        str | None,
        typer.Option(
            metavar="STEP|best",
            help="Export the checkpoint of this step, or the best one; by default the newest.",
            show_default="the newest",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace the file if it exists.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Write the weights of a trainer's checkpoint to one file, whether it was replicated, sharded or in stages.

    A trainer of oakum.hugging_face is also written as a folder that from_pretrained loads.

    Needs no nodes, but the folder of the checkpoints, which `oakum show` names.
    """
    need_torch("export")
    if output.exists() and not force:
        raise CommandError(f"{output} is there already: choose another name, or --force replaces it")
    if not output.absolute().parent.is_dir():
        raise CommandError(f"{output}: there is no folder {output.absolute().parent}")
    from rich import filesize
    from rich.console import Console

    from oakum_client.exporting import export_model, folder_to_export

    with connect() as client:
        view = client.trainer(trainer)
        folder, is_exact = folder_to_export(view, step), view.spec.exact
        with Console(stderr=True).status(f"reading {folder}") as status:
            exported = export_model(
                folder,
                output,
                lambda now, total: status.update(f"{filesize.decimal(now)} of {filesize.decimal(total)} written"),
                is_exact=is_exact,
            )
    if as_json:
        facts = {
            "file": str(output),
            "step": exported.step,
            "tensors": exported.num_tensors,
            "bytes": exported.num_bytes,
        }
        typer.echo(json.dumps(facts | {"exact": is_exact}))
        return
    remark = "" if is_exact else "; exact: false, so it may depend on the nodes that trained it"
    size = filesize.decimal(exported.num_bytes)
    typer.echo(f"{output}: {exported.num_tensors} tensors, {size}, after step {exported.step}{remark}")
