"""The advice as text: each answer with its lemma and the numbers that went into it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from oakum_client.cli.advising.choice import SpecAdvice, in_nodes, in_samples, mib, what_would_fit
from oakum_client.cli.advising.mini_batch import AS_BUILT, Facts, MiniBatchAdvice, SizeAdvice
from oakum_client.cli.advising.nodes import ExchangeAdvice, NodesAdvice
from oakum_client.cli.units import rate

_WORTH_IT = 1.02
"""Times as fast, from which on other algorithms are worth a change of the model."""
_HOW = {
    "channels-last": "x.contiguous(memory_format=torch.channels_last) before it",
    "im2col": "torch.nn.functional.unfold, then one matrix product",
    "without oneDNN": "call it within torch.backends.mkldnn.flags(enabled=False)",
    "cuDNN benchmark": "torch.backends.cudnn.benchmark = True",
    "fused loops": "oakum_worker.recurrent.layers has LSTM and GRU to take its place",
    "SDPA math": "call it within torch.nn.attention.sdpa_kernel(SDPBackend.MATH)",
    "SDPA flash": "call it within torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION)",
    "SDPA efficient": "call it within torch.nn.attention.sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION)",
    "SDPA cuDNN": "call it within torch.nn.attention.sdpa_kernel(SDPBackend.CUDNN_ATTENTION)",
    "recompute": "torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)",
    "torch.compile": "torch.compile(layer), or `compile: true` in the spec for the whole model",
}
"""Algorithm -> what to write into a model to have it."""


def mini_batch_lines(facts: Facts, batch: MiniBatchAdvice, checked: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Memory, candidates, algorithms."""
    static = facts["weight_bytes"] + facts["gradient_bytes"] + facts["optimizer_bytes"]
    yield "Mini-batch: how many samples a rank computes at once"
    yield (
        f"  on {facts['device']}, within {mib(facts['limit_bytes'])} of memory; on the fewest nodes a rank "
        f"computes {facts['share']:,} samples of a step"
    )
    yield (
        f"  weights {mib(facts['weight_bytes'])}, gradients {mib(facts['gradient_bytes'])}, optimizer state "
        f"{mib(facts['optimizer_bytes'])}: {mib(static)} whatever the mini-batch"
    )
    yield ""
    yield "  samples       working        peak   left for layers   samples/s   with other algorithms"
    for row in batch.sizes:
        marks = " *" if row is batch.best else ""
        plain = "too large" if row.samples_per_s is None else rate(row.samples_per_s)
        yield (
            f"  {row.samples:7,}{mib(row.peak_bytes - static):>14}{mib(row.peak_bytes):>12}"
            f"{mib(max(row.left_bytes, 0)):>18}{plain:>12}{_rate_with_choice(row):>24}{marks}"
        )
    yield "  working: samples, layers' outputs and workspace, at their peak"
    yield "  left for layers: what their algorithms may keep and use"
    yield (
        "  samples/s: of forward and backward passes alone; the optimizer's step takes "
        f"{1e3 * facts['update_s']:.3g} ms more"
    )
    if batch.best is not None:
        surely = f"no other size is faster by more than {100 * max(batch.uncertainty, 0.02):.0f} %"
        unsure = "; other work on this machine disturbed the measurement" if batch.uncertainty > 0.02 else ""
        yield f"  * the fastest: {surely}{unsure}"
    if ways := what_would_fit(facts, batch):
        yield ""
        least = in_samples(facts["smallest"])
        yield f"  Not even {least} at once: that is more than {mib(facts['limit_bytes'])}. What would make it fit:"
        yield from (f"  - {way}" for way in ways)
    layers = list(_layer_lines(batch))
    if layers:
        yield ""
        yield from layers
    for trial in checked:
        yield from _trial_lines(trial, batch)


def _rate_with_choice(row: SizeAdvice) -> str:
    if row.chosen_samples_per_s is None:
        return "none fit" if row.samples_per_s is None else "-"
    if set(row.algorithms) <= {AS_BUILT}:
        return "none is faster"
    return f"{rate(row.chosen_samples_per_s)} predicted"


def _layer_lines(batch: MiniBatchAdvice) -> Iterable[str]:
    size = batch.best_chosen or batch.best
    if size is None or not batch.layers:
        return
    yield f"  Algorithms of each layer for {in_samples(size.samples)}, forward and backward pass; + is chosen by"
    workspaces = "layers use one workspace in turn" if batch.shared else "each layer has its own workspace"
    yield f"  minimise sum x_kl T_kl(b) with sum x_kl M_kl(b) <= left(b), where {workspaces}"
    yield f"  ({' and '.join(size.by) or 'nothing'} found the choice)"
    skipped: dict[tuple[str, str], None] = {}
    for layer in batch.layers:
        more = f" and {len(layer.names) - 1} alike" if len(layer.names) > 1 else ""
        yield f"  {layer.names[0] or 'the whole model'}{more} ({layer.kind})"
        for option in layer.options:
            mark = "  +" if option.algorithm == layer.algorithm else ""
            yield (
                f"      {option.algorithm:18}{1e3 * option.seconds:9.3f} ms   keeps {mib(option.kept_bytes):>9}   "
                f"workspace {mib(option.buffer_bytes):>9}{mark}"
            )
        skipped |= dict.fromkeys(layer.skipped)
    yield from (f"  not tried, {name}: {why}" for name, why in skipped)


def _trial_lines(trial: Mapping[str, Any], batch: MiniBatchAdvice) -> Iterable[str]:
    if trial["why"] is not None:
        yield f"  with the chosen algorithms the task does not run ({trial['why']}): leave it as it is"
        return
    if trial["seconds"] is None:
        yield f"  {in_samples(trial['samples'])} do not fit with the chosen algorithms: leave the task as it is"
        return
    plain = f", {rate(trial['samples'] / trial['plain_s'])} as it is" if trial["plain_s"] else ""
    pays = trial["plain_s"] is None or trial["plain_s"] >= _WORTH_IT * trial["seconds"]
    yield (
        f"  the whole model with the chosen algorithms: {in_samples(trial['samples'])} in "
        f"{mib(trial['peak_bytes'])} at {rate(trial['samples'] / trial['seconds'])} samples/s{plain}"
        f"{'' if pays else ': they do not pay, leave the task as it is'}"
    )
    if pays:
        yield "  To have them, write into the model:"
        for layer in batch.layers:
            if layer.algorithm != AS_BUILT:
                names = ", ".join(name or "the whole model" for name in layer.names)
                yield f"  - {layer.algorithm} for {names}: {_HOW[layer.algorithm]}"


def nodes_lines(nodes: NodesAdvice) -> Iterable[str]:
    """Lines of text: the lemma in both of its forms, and the predicted speed-up by number of nodes."""
    costs, target = nodes.costs, nodes.asked_efficiency
    yield "Number of nodes, for the same global batch on any number"
    yield (
        f"  T_C {1e3 * costs.compute_s:.3g} ms of compute, which nodes share; T_O {1e3 * costs.overhead_s:.3g} ms "
        f"of overhead on {in_nodes(nodes.at_nodes)}"
    )
    yield f"  from {nodes.source}"
    yield f"  R  = T_O / (T_C + T_O) = {costs.share:.4g}: speed-up n / (1 + (n - 1) R)"
    yield f"  R' = T_O / T_C = {costs.ratio:.4g}: efficiency (1 + R') / (1 + n R')"
    lemma = "any number of nodes" if nodes.lemma_nodes is None else f"at most {in_nodes(nodes.lemma_nodes)}"
    yield f"  for an efficiency of {100 * target:g} %: {lemma}, if T_O were the same on any number;"
    yield f"  at most {in_nodes(nodes.most_nodes)} with T_O as it grows (up to {nodes.largest:,} were looked at)"
    if nodes.limit_by_share is not None and nodes.limit_by_ratio is not None:
        yield (
            f"  (the bare ratio T_O / T_C would allow {nodes.limit_by_share:.4g} nodes read as R, "
            f"{nodes.limit_by_ratio:.4g} read as R': so take the two times)"
        )
    yield ""
    yield "  nodes   samples/s   speed-up   efficiency" + ("   measured" if nodes.measured else "")
    measured_rates = dict(nodes.measured)
    for n, samples_per_s, speedup, efficiency in nodes.rows:
        measured = f"{rate(measured_rates[n]):>11}" if n in measured_rates else ""
        yield f"  {n:5,}{rate(samples_per_s):>12}{speedup:11.2f}{100 * efficiency:11.0f} %{measured}"


def exchange_lines(exchange: ExchangeAdvice) -> Iterable[str]:
    """Lines of text: the number of parameter servers that would be needed, and the all-reduce that Oakum uses
    instead."""
    row, column = exchange.grid
    servers = "1 parameter server" if exchange.servers == 1 else f"{exchange.servers:,} parameter servers"
    yield f"Summing gradients over {in_nodes(exchange.nodes)}"
    yield (
        f"  N_ps = ceil(2 S_p N_w / (B_ps T_C)): {servers} would do, for S_p = {mib(exchange.gradient_bytes)} of "
        f"gradients and T_C = {1e3 * exchange.compute_s:.3g} ms of a node's share"
    )
    torus = (
        f", as a torus of {row} x {column} {1e3 * exchange.torus_s:.3g} ms"
        if column > 1
        else f" ({exchange.nodes:,} nodes make no torus)"
    )
    hides = "hides" if exchange.hidden else "does not hide"
    yield (
        f"  Oakum has no servers. The nodes' own all-reduce takes {1e3 * exchange.ring_s:.3g} ms as a ring{torus};"
        f"\n  the {exchange.all_reduce} {hides} behind the {1e3 * exchange.behind_s:.3g} ms of the backward pass"
    )


def choice_lines(advice: SpecAdvice, prospect: str) -> Iterable[str]:
    """Lines of text: what Oakum would choose, and when the trainer would end."""
    yield "What Oakum would choose"
    yield f"  layout      {advice.layout}"
    if advice.mini_batch is not None:
        remark = "" if "micro_batch" in advice.fields else ", as it is: none is surely faster"
        yield f"  mini-batch  {in_samples(advice.mini_batch)}{remark}"
    yield f"  precision   {advice.precision}"
    yield f"  recompute   {', '.join(name or 'the whole model' for name in advice.recompute) or 'nothing'}"
    for name, value in advice.fields.items():
        yield f"  {name:11} {value}   ({advice.reasons[name]})"
    if not advice.fields:
        yield "  the spec's bounds and mini-batch stay as they are"
    if advice.samples_per_s is not None:
        yield f"  about {rate(advice.samples_per_s)} samples/s on {in_nodes(advice.max_nodes)}"
    yield from (f"  note: {remark}" for remark in advice.remarks)
    yield f"  {prospect}"
