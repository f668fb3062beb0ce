"""`oakum advise`: derives what to ask for from the user's own model on this machine, or from a running trainer."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oakum_client.cli.app import TRAINERS, CommandError, app, example
from oakum_client.cli.completion import complete_trainer
from oakum_client.cli.connection import connect
from oakum_client.cli.trying import CheckList, NoDisplay, TryDisplay, TryResult, ask_worker
from oakum_client.cli.units import duration, parse_duration, rate
from oakum_worker.profiling.options import BandwidthOption, LatencyOption, MemoryOption

if TYPE_CHECKING:
    from oakum_client.cli.advising.choice import SpecAdvice
    from oakum_client.cli.advising.mini_batch import MiniBatchAdvice
    from oakum_client.cli.advising.nodes import ExchangeAdvice, NodesAdvice
    from oakum_client.cli.advising.running import RunningAdvice
    from oakum_service.api.schemas.submissions import DryRunView
    from oakum_service.api.schemas.trainers import TrainerView
    from oakum_solver.advice.exchange import Link
    from oakum_worker.spec import TrainerSpec


@app.command(
    rich_help_panel=TRAINERS,
    epilog=example(
        "oakum advise digits.yaml",
        "oakum advise model.yaml --memory 16GiB --efficiency 0.9 --apply",
        "oakum advise --trainer digits-classifier",
    ),
)
def advise(
    spec: Annotated[
        Path | None, typer.Argument(metavar="SPEC", help="Trainer spec, YAML or JSON.", show_default=False)
    ] = None,
    trainer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Use the rates measured while this trainer trained.",
            autocompletion=complete_trainer,
        ),
    ] = None,
    memory: MemoryOption = None,
    efficiency: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Speed-up for each node that is asked for.")
    ] = 0.8,
    latency_us: LatencyOption = 100.0,
    bandwidth: BandwidthOption = "1GB",
    try_compile: Annotated[
        bool, typer.Option("--try-compile", help="Try torch.compile on each layer, too; takes minutes.")
    ] = False,
    separate_workspaces: Annotated[
        bool,
        typer.Option(
            "--separate-workspaces",
            help="Count a workspace for each layer, as where layers run at once, not one for all in turn.",
        ),
    ] = False,
    apply: Annotated[
        bool, typer.Option("--apply", help="Write the advice into the spec, and print the changes.")
    ] = False,
    check_limit: Annotated[
        str, typer.Option("--check-limit", metavar="TIME", help="How long each measurement may take.")
    ] = "5m",
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say which mini-batch, how many nodes and which layout a trainer should ask for, and why.

    With a SPEC its model is measured on this machine, in a process of its own, in about a minute: run it on a
    node of the kind that the trainer is for. With --trainer the number of nodes follows from what that trainer
    has measured, and so does what can be known of its mini-batch; give its SPEC, too, for the rest. Ctrl-C ends
    it and leaves nothing behind.
    """
    if spec is None and trainer is None:
        raise typer.BadParameter("give a SPEC, or a running trainer by --trainer NAME")
    if apply and spec is None:
        raise typer.BadParameter("--apply writes into a SPEC: give one beside --trainer")
    from oakum_client.cli.advising.spec_edit import refuse_uneditable
    from oakum_solver.advice.exchange import Link
    from oakum_solver.errors import SolverError
    from oakum_worker.errors import SpecError
    from oakum_worker.profiling.options import parse_bytes
    from oakum_worker.spec import read_spec

    limit_s = parse_duration(check_limit)
    try:
        if memory is not None:
            parse_bytes(memory)
        link = Link(latency_us * 1e-6, float(parse_bytes(bandwidth, "--bandwidth")))
        if apply and spec is not None:
            read_spec(spec)
            refuse_uneditable(spec)
        view: TryDisplay = NoDisplay() if json_output else _check_list()
        advice = _Advice(spec, trainer, link, efficiency)
        if spec is not None:
            advice.measure(spec, memory, limit_s, view, try_compile=try_compile, shared=not separate_workspaces)
        advice.conclude()
        if json_output:
            typer.echo(json.dumps(advice.document(), indent=2))
        else:
            typer.echo("\n".join(advice.lines()))
        if apply and spec is not None:
            _apply(spec, advice.choice, as_json=json_output)
    except (SpecError, SolverError) as error:
        raise CommandError(str(error)) from error


def _check_list() -> TryDisplay:
    from rich.console import Console

    return CheckList(Console(stderr=True, markup=False, highlight=False, emoji=False))


class _Advice:
    """The answers of one advice, computed in an order in which each can use those before it."""

    def __init__(self, path: Path | None, trainer: str | None, link: Link, efficiency: float) -> None:
        """Raises `SpecError` for a spec, and `CommandError` for a trainer, that cannot be read."""
        from oakum_worker.spec import read_spec

        self._link, self._efficiency = link, efficiency
        self._rates: list[tuple[int, float, float]] = []
        self._trainer: TrainerView | None = None
        document: TrainerSpec | None = None if path is None else read_spec(path)
        if trainer is not None:
            with connect() as client:
                self._trainer = view = client.trainer(trainer)
            self._rates = [
                (measured.nodes, measured.samples_per_s, measured.seconds) for measured in view.measured_rates
            ]
            if len(self._rates) < 2:
                raise CommandError(
                    f"{trainer} has been measured at {len(self._rates)} sizes: two are needed to tell compute "
                    "from overhead; wait until it has trained on another number of nodes, or give its SPEC alone"
                )
            document = document or view.spec
        assert document is not None
        self.spec = document
        self.facts: dict[str, Any] | None = None
        self.batch: MiniBatchAdvice | None = None
        self.checked: list[dict[str, Any]] = []
        self.nodes: NodesAdvice | None = None
        self.exchange: ExchangeAdvice | None = None
        self.running: RunningAdvice | None = None
        self.choice: SpecAdvice
        self.prospect = ""

    def measure(
        self,
        path: Path,
        memory: str | None,
        limit_s: float,
        view: TryDisplay,
        *,
        try_compile: bool,
        shared: bool,
    ) -> None:
        """Have the model measured, and choose micro-batch and algorithms; have a choice of other algorithms
        measured, too. Sets `facts`, `batch` and `checked`. Raises `CommandError` on failure."""
        from oakum_client.cli.advising.mini_batch import AS_BUILT, advise_mini_batch

        options = ["--leased", *([] if memory is None else ["--memory", memory])]
        options += ["--try-compile"] if try_compile else []
        self.facts = _measure(["advise", str(path), *options], path, limit_s, view).facts
        self.batch = batch = advise_mini_batch(self.facts, shared=shared)
        algorithms = {
            name: layer.algorithm for layer in batch.layers for name in layer.names if layer.algorithm != AS_BUILT
        }
        if algorithms and batch.best_chosen is not None:
            choice = json.dumps({"algorithms": algorithms, "sizes": [batch.best_chosen.samples]})
            result = _measure(["advise", str(path), *options, "--choice", choice], path, limit_s, view)
            self.checked = result.facts["checked"]

    def conclude(self) -> None:
        """Compute the advice on nodes and on the exchange of gradients, and the fields to write; then ask the
        service when the trainer would end."""
        from oakum_client.cli.advising.choice import advise_spec, splits_layers
        from oakum_client.cli.advising.nodes import (
            exchange_advice,
            nodes_from_layouts,
            nodes_from_passes,
            nodes_from_rates,
        )
        from oakum_client.cli.advising.running import running_advice

        spec, facts, batch = self.spec, self.facts, self.batch
        if self._rates:
            self.nodes = nodes_from_rates(
                self._rates, global_batch=spec.global_batch, max_nodes=spec.max_nodes, efficiency=self._efficiency
            )
        elif splits_layers(spec) and len(layouts := _fitting_layouts(facts)) > 1:
            self.nodes = nodes_from_layouts(
                layouts, global_batch=spec.global_batch, max_nodes=spec.max_nodes, efficiency=self._efficiency
            )
        elif facts is not None and batch is not None and batch.pass_time is not None and batch.best is not None:
            self.nodes = nodes_from_passes(
                batch.pass_time,
                facts["update_s"],
                facts["gradient_bytes"],
                self._link,
                global_batch=spec.global_batch,
                micro_batch=batch.best.samples,
                ranks_per_node=spec.ranks_per_node,
                max_nodes=spec.max_nodes,
                efficiency=self._efficiency,
            )
        if self._trainer is not None and self.nodes is not None:
            self.running = running_advice(
                self._trainer.name,
                self._trainer.spec,
                self._rates,
                self.nodes,
                len(self._trainer.nodes),
                is_measured_here=facts is not None,
            )
        self.choice = advise_spec(spec, facts, batch, self.nodes)
        if self.nodes is not None and facts is not None:
            # On one node there is nothing to sum: then the sums are those of the nodes that the spec asks for.
            several = self.choice.max_nodes if self.choice.max_nodes > 1 else spec.max_nodes
            if several > 1:
                self.exchange = exchange_advice(
                    facts["gradient_bytes"], several, self.nodes.costs.compute_s, self._link
                )
        self.prospect = self._ask_service()

    def _ask_service(self) -> str:
        from pydantic import ValidationError

        from oakum_client.cli.advising.choice import advised, in_nodes

        if self.facts is not None and not self.facts["largest"]:
            return "it would not train as it is: not one sample fits; see above what would make it fit"
        if self._trainer is not None:
            return self._of_running(self._trainer)
        total = None if self.facts is None else self.facts["num_samples"] * self.spec.epochs
        try:
            document = advised(self.spec, self.choice)
            with connect() as client:
                view = client.dry_run(document, total)
        except (CommandError, ValidationError) as error:
            rated, most = self.choice.samples_per_s, self.choice.max_nodes
            alone = ""
            if total is not None and rated:
                alone = f"; with {in_nodes(most)} all the time it takes about {duration(total / rated)}"
            return f"when it would end, no service says ({str(error).split('. ')[0]}){alone}"
        if not view.nodes:
            return f"by the cluster's present holes it would wait: {view.reason}"
        return self._on_holes(view, total)

    def _on_holes(self, view: DryRunView, total: int | None) -> str:
        """What a plan would give the trainer now; a rate that its curve does not tell is the predicted one."""
        speed, end_s = view.samples_per_s, view.finish_in_s
        if speed is None and self.nodes is not None:
            speed = self.nodes.rate(len(view.nodes))
        if end_s is None and speed and total is not None:
            end_s = (view.start_in_s or 0.0) + total / speed
        ends = "" if end_s is None else f", and end in about {duration(end_s)} if these stay"
        return (
            f"by the cluster's present holes it would get {len(view.nodes)} of {view.num_idle} idle nodes, train "
            f"at {rate(speed)} samples/s{ends}"
        )

    def _of_running(self, trainer: TrainerView) -> str:
        """When a running trainer would end, on its present nodes and on the advised maximum."""
        from oakum_client.cli.advising.choice import in_nodes

        present, most = len(trainer.nodes), self.choice.max_nodes
        text = f"{trainer.name} trains on {in_nodes(present)} now"
        if self.nodes is not None and trainer.total_samples is not None:
            samples_left = max(trainer.total_samples - trainer.samples, 0)
            sizes = sorted({present, most} - {0})
            ends = [f"about {duration(samples_left / self.nodes.rate(n))} on {in_nodes(n)}" for n in sizes]
            text += f"; to its end it takes {', '.join(ends)}"
        return f"{text}; `oakum scale {trainer.name}` changes the bounds of a running trainer"

    def lines(self) -> list[str]:
        """The advice as text."""
        from oakum_client.cli.advising import report
        from oakum_client.cli.advising.running import running_lines

        parts: list[list[str]] = []
        if self.facts is not None and self.batch is not None:
            parts.append(list(report.mini_batch_lines(self.facts, self.batch, self.checked)))
        if self.running is not None:
            parts.append(list(running_lines(self.running)))
        if self.nodes is not None:
            parts.append(list(report.nodes_lines(self.nodes)))
        if self.exchange is not None:
            parts.append(list(report.exchange_lines(self.exchange)))
        parts.append(list(report.choice_lines(self.choice, self.prospect)))
        return [line.rstrip() for part in parts for line in (*part, "")][:-1]

    def document(self) -> dict[str, Any]:
        """All answers and all that was measured, ready for JSON."""
        from oakum_client.cli.advising.choice import what_would_fit

        fits = [] if self.facts is None or self.batch is None else what_would_fit(self.facts, self.batch)
        nodes = self.nodes
        return {
            "measured": self.facts,
            "mini_batch": None if self.batch is None else asdict(self.batch),
            "checked": self.checked,
            "running": None if self.running is None else asdict(self.running),
            "what_would_fit": fits,
            "nodes": None
            if nodes is None
            else asdict(nodes) | {"share": nodes.costs.share, "ratio": nodes.costs.ratio},
            "exchange": None
            if self.exchange is None
            else asdict(self.exchange) | {"hidden": self.exchange.hidden, "all_reduce": self.exchange.all_reduce},
            "choice": asdict(self.choice),
            "prospect": self.prospect,
        }


def _fitting_layouts(facts: dict[str, Any] | None) -> list[tuple[int, float]]:
    """(nodes, samples/s) of the layouts that fit; none where nothing was measured."""
    layouts = [] if facts is None else facts["layouts"]
    return [(layout["nodes"], layout["samples_per_s"]) for layout in layouts if layout["fits"]]


def _measure(arguments: list[str], path: Path, limit_s: float, view: TryDisplay) -> TryResult:
    result = ask_worker(arguments, path, limit_s, view, instead="")
    if result.left_out is not None:
        raise CommandError(f"{path}: {result.left_out}: use the nodes' Python")
    if result.failure is not None:
        raise CommandError(f"{path}: {result.failure}")
    return result


def _apply(path: Path, choice: SpecAdvice, *, as_json: bool) -> None:
    """Write the advice into the spec and show what has changed."""
    from oakum_client.cli.advising.spec_edit import difference, replace_spec, with_advice

    with path.open(encoding="utf-8", newline="") as file:
        before = file.read()
    notes = choice.remarks
    if choice.recompute:
        notes += (f"recompute {', '.join(choice.recompute)} (torch.utils.checkpoint)",)
    after = with_advice(before, choice.fields, choice.reasons, notes)
    if not as_json:
        typer.echo("")
        typer.echo(difference(before, after, path) or f"{path} stays as it is", nl=False)
    replace_spec(path, after)
