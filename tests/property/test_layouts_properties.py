"""The chosen layout is the best of all layouts, found by trying each of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from layouts_of_ranks import best_layouts
from num_examples import scaled
from oakum_worker.errors import ScheduleError
from oakum_worker.parallel.arranging import curve
from oakum_worker.parallel.link_costs import LinkCosts
from oakum_worker.parallel.pipeline.costs import LayerCost, ModelProfile, Tied
from oakum_worker.parallel.pipeline.layouts import (
    Choices,
    LayoutCandidate,
    choose,
    lower_bound_s,
    predict,
)
from oakum_worker.parallel.pipeline.partition import partition
from oakum_worker.parallel.pipeline.schedules import build
from oakum_worker.parallel.pipeline.simulation import simulate

SIZES = (1, 2, 4)
SCHEMES = ("concatenation", "forward-doubling", "backward-halving")
STAGES_PER_WORKER = {"interleaved": 2, "zero-bubble-v": 2}


@st.composite
def layers(draw: st.DrawFn) -> LayerCost:
    """Costs of a layer whose time per sample falls with the micro-batch, as that of real layers does."""
    forward, backward = draw(st.integers(1, 9)), draw(st.integers(1, 18))
    gain = draw(st.sampled_from([1.0, 0.8, 0.5]))
    return LayerCost(
        forward_s=tuple(forward * gain**step for step in range(len(SIZES))),
        backward_s=tuple(backward * gain**step for step in range(len(SIZES))),
        parameter_bytes=draw(st.integers(0, 40)),
        optimizer_bytes=draw(st.integers(0, 80)),
        activation_bytes=draw(st.integers(0, 20)),
        output_bytes=draw(st.integers(0, 5)),
        split=draw(st.sampled_from([(0.5, 0.5), (0.7, 0.9), (0.4, 1.0), None])),
    )


@st.composite
def profiles(draw: st.DrawFn) -> ModelProfile:
    """Profiles of chains in which some layers share weights; the cost of each of these layers includes them."""
    chain = draw(st.lists(layers(), min_size=1, max_size=6))
    tied = ()
    if len(chain) > 1:
        users = draw(st.sets(st.integers(0, len(chain) - 1), min_size=2, max_size=3))
        shared = Tied(tuple(sorted(users)), draw(st.integers(0, 30)), draw(st.integers(0, 60)))
        tied = (shared,)
        for user in users:
            layer = chain[user]
            chain[user] = replace(
                layer,
                parameter_bytes=layer.parameter_bytes + shared.parameter_bytes,
                optimizer_bytes=layer.optimizer_bytes + shared.optimizer_bytes,
            )
    return ModelProfile(SIZES, tuple(chain), draw(st.integers(0, 5)), draw(st.sampled_from([1, 1, 2])), tied)


links = st.builds(
    LinkCosts, latency_s=st.sampled_from([0.0, 0.5]), bandwidth_bytes_per_s=st.sampled_from([math.inf, 50.0, 5.0])
)


class BruteForce:
    """Every layout there is, each predicted from the definitions, without anything of the chooser."""

    def __init__(self, profile: ModelProfile, links: LinkCosts, choices: Choices) -> None:
        self.profile, self.links = profile, links
        self.batch, self.memory, self.schedules = choices.global_batch, choices.memory_bytes, choices.schedules
        self.most_replicas = max(1, self.batch // profile.smallest)
        self.num_workers, self.num_pipes = choices.num_workers, choices.num_pipes
        self.sizes = SIZES if choices.micro_batch is None else (choices.micro_batch,)

    def best_step_s(self, num_ranks: int) -> float | None:
        """Seconds of the fastest step of a layout that fits, on as many ranks or fewer; None if no layout fits."""
        if self.num_workers is not None:
            for num_workers in range(min(num_ranks, self.num_workers), 0, -1):
                num_replicas = min(num_ranks // num_workers, self.most_replicas)
                if list(self.ways(num_workers, num_replicas)):
                    return min(self.fitting(num_workers, num_replicas), default=None)
        return min(
            (
                step
                for num_workers in range(1, num_ranks + 1)
                for num_replicas in range(1, min(num_ranks // num_workers, self.most_replicas) + 1)
                for step in self.fitting(num_workers, num_replicas)
            ),
            default=None,
        )

    def fitting(self, num_workers: int, num_replicas: int) -> Iterator[float]:
        """Seconds of a step; with recomputation where it does not fit without."""
        for name, options, number in self.ways(num_workers, num_replicas):
            for recompute in (False, True):
                step, bytes_ = self.predicted(num_workers, num_replicas, name, options, number, recompute)
                if bytes_ <= self.memory:
                    yield step
                    break

    def ways(self, num_workers: int, num_replicas: int) -> Iterator[tuple[str, dict[str, Any], int]]:
        for name in self.schedules if num_workers > 1 else ("1f1b",):
            if "zero" in name and any(layer.split is None for layer in self.profile.layers):
                continue
            num_stages = num_workers * STAGES_PER_WORKER.get(name, 1)
            pipes = {"num_pipes": 2 if num_workers % self.num_pipes else self.num_pipes}
            for options in [{"scheme": scheme} | pipes for scheme in SCHEMES] if name == "chimera" else [{}]:
                for size in self.sizes:
                    number = self.number(num_workers, num_replicas, name, options, size)
                    if number is not None and len(self.profile.layers) >= num_stages:
                        yield name, options, number

    def number(
        self, num_workers: int, num_replicas: int, name: str, options: dict[str, Any], size: int
    ) -> int | None:
        """The fewest micro-batches of that size at most that there is a schedule for."""
        wanted = math.ceil(math.ceil(self.batch / num_replicas) / size)
        most = max(1, self.batch // num_replicas // self.profile.smallest)
        wanted *= 2 if options.get("scheme") == "backward-halving" else 1
        for number in range(min(wanted, most), most + 1):
            try:
                build(name, num_workers=num_workers, num_micro_batches=number, **options)  # type: ignore[arg-type]
            except ScheduleError:
                continue
            return number
        return None

    def predicted(
        self,
        num_workers: int,
        num_replicas: int,
        name: str,
        options: dict[str, Any],
        number: int,
        recompute: bool,
    ) -> tuple[float, float]:
        """Seconds of a step and bytes of the worker that needs most."""
        schedule = build(name, num_workers=num_workers, num_micro_batches=number, **options)  # type: ignore[arg-type]
        size = math.ceil(math.ceil(self.batch / num_replicas) / number)
        forward = [self.seconds(layer.forward_s, size) for layer in self.profile.layers]
        doubled = [self.seconds(layer.forward_s, 2 * size) for layer in self.profile.layers]
        backward = [self.seconds(layer.backward_s, size) for layer in self.profile.layers]
        if recompute:
            backward = [f + b for f, b in zip(forward, backward, strict=True)]
        cuts = partition([f + b for f, b in zip(forward, backward, strict=True)], schedule.num_stages)
        split = [self.split_s(cut, size, recompute) for cut in cuts]
        stages = [[self.profile.layers[layer] for layer in cut] for cut in cuts]
        weights = self.weights()
        weights_of = [{one for one, (*_, users) in weights.items() if users & {*cut}} for cut in cuts]
        tied = {one for one in weights if sum(one in mine for mine in weights_of) > 1}
        outputs = [size * stage[-1].output_bytes for stage in stages]
        activations = [size * sum(layer.activation_bytes for layer in stage) for stage in stages]
        kept = [size * self.profile.input_bytes, *outputs[:-1]] if recompute else activations
        simulation = simulate(
            schedule,
            [sum(forward[layer] for layer in cut) for cut in cuts],
            [sum(backward[layer] for layer in cut) for cut in cuts],
            doubled=[sum(doubled[layer] for layer in cut) for cut in cuts],
            inputs=[inputs for inputs, _ in split],
            weights=[weights for _, weights in split],
            latency=self.links.latency_s,
            transfer=[output / self.links.bandwidth_bytes_per_s for output in outputs],
            sync=[
                self.sum_s(num_replicas * schedule.num_pipes, sum(weights[own][0] for own in mine - tied))
                for mine in weights_of
            ],
            activation=kept,
            split_activation=[0, *activations[1:]] if recompute else 0,
        )
        state = [sum(2 * weights[one][0] + weights[one][1] for one in mine) for mine in weights_of]
        peaks = []
        for worker, held in enumerate(simulation.peak_activations):
            mine = [stage for _, stage in schedule.stages_of(worker)]
            # What a split backward pass works on is among what is held, but on the first stage.
            working = max(activations[s] * (s == 0 or "zero" not in name) for s in mine) if recompute else 0
            peaks.append(held + working + sum(state[stage] for stage in mine))
        tied_s = 0.0
        for one in tied:
            holders = {w for s, mine in enumerate(weights_of) if one in mine for w in schedule.holders_of(s)}
            tied_s += self.sum_s(num_replicas * len(holders), weights[one][0])
        return simulation.step + tied_s, max(peaks)

    def split_s(self, cut: range, size: int, recompute: bool) -> tuple[float, float]:
        """Seconds of the parts of a split backward pass. The first stage computes no gradients of its inputs,
        and its second part ends at its first layer with weights."""
        layers = [self.profile.layers[number] for number in cut]
        again = sum(self.seconds(layer.forward_s, size) for layer in layers) if recompute else 0.0
        inputs, weights = again, 0.0
        for place, layer in reversed(list(enumerate(layers))):
            whole = self.seconds(layer.backward_s, size)
            for_inputs, for_weights = layer.split or (1.0, 1.0)
            inputs += for_inputs * whole
            if cut.start == 0 and any(before.parameter_bytes for before in layers[:place]):
                weights += whole
            elif cut.start or layer.parameter_bytes:
                weights += for_weights * whole
        return (inputs, weights) if cut.start else (0.0, weights + again)

    def weights(self) -> dict[int, tuple[int, int, set[int]]]:
        """Bytes, bytes of the optimizer, and the layers that use them."""
        found = [(tied.parameter_bytes, tied.optimizer_bytes, {*tied.layers}) for tied in self.profile.tied]
        for number, layer in enumerate(self.profile.layers):
            shared = [one for one in found if number in one[2] and len(one[2]) > 1]
            own = layer.parameter_bytes - sum(one[0] for one in shared)
            found.append((own, layer.optimizer_bytes - sum(one[1] for one in shared), {number}))
        return dict(enumerate(found))

    def sum_s(self, num_ranks: int, num_bytes: int) -> float:
        if num_ranks == 1:
            return 0.0
        size = num_bytes / self.links.bandwidth_bytes_per_s
        return 2 * math.log2(num_ranks) * self.links.latency_s + 2 * (num_ranks - 1) * size / num_ranks

    @staticmethod
    def seconds(rates: tuple[float, ...], size: int) -> float:
        times = [0.0, *(measured * rate for measured, rate in zip(SIZES, rates, strict=True))]
        points = [0, *SIZES]
        for i in range(1, len(points)):
            if size <= points[i]:
                return times[i - 1] + (times[i] - times[i - 1]) * (size - points[i - 1]) / (
                    points[i] - points[i - 1]
                )
        return size * rates[-1]


@settings(max_examples=scaled(60), deadline=None)
@given(
    profiles(),
    links,
    st.integers(1, 5),
    st.builds(
        Choices,
        global_batch=st.integers(1, 12),
        memory_bytes=st.sampled_from([60, 150, 400, math.inf]),
        schedules=st.sampled_from([("1f1b", "gpipe", "chimera"), ("zero-bubble", "zero-bubble-v", "interleaved")]),
        num_workers=st.sampled_from([None, None, 2, 3, 4]),
        micro_batch=st.sampled_from([None, None, 1, 3]),
        num_pipes=st.sampled_from([2, 4]),
    ),
)
def test_the_chooser_finds_what_trying_every_layout_finds(
    profile: ModelProfile, links: LinkCosts, num_ranks: int, choices: Choices
) -> None:
    if not profile.can_split:
        # Where nothing else is asked for, what refuses to be split is taken all the same.
        choices = replace(choices, schedules=("1f1b", *choices.schedules))
    chosen = choose(num_ranks, profile, links, choices)
    best = BruteForce(profile, links, choices).best_step_s(num_ranks)
    assert chosen.fits == (best is not None)
    if best is not None:
        assert chosen.predicted_step_s == pytest.approx(best)
        assert max(chosen.peak_bytes) <= choices.memory_bytes
    assert chosen.num_ranks <= num_ranks
    assert [layer for cut in chosen.cuts for layer in cut] == list(range(len(profile.layers)))
    again = best_layouts(num_ranks, profile, links, choices)[-1]
    assert again == chosen


@settings(max_examples=scaled(80), deadline=None)
@given(
    profiles(),
    links,
    st.sampled_from(["1f1b", "gpipe", "interleaved", "zero-bubble", "zero-bubble-v", "four pipes", *SCHEMES]),
    st.sampled_from([2, 3, 4]),
    st.sampled_from([1, 3]),
    st.integers(1, 4),
    st.booleans(),
)
def test_no_layout_is_faster_than_the_bound_that_rules_others_out(
    profile: ModelProfile,
    links: LinkCosts,
    name: str,
    num_workers: int,
    num_replicas: int,
    rounds: int,
    recompute: bool,
) -> None:
    num_pipes = 4 if name == "four pipes" else 2 if name in SCHEMES else 1
    scheme = "concatenation" if name == "four pipes" else name if name in SCHEMES else None
    num_stages = num_workers * STAGES_PER_WORKER.get(name, 1)
    number = rounds * num_workers if scheme is None else 2 * num_pipes - 2 + 2 * rounds
    assume(num_stages <= len(profile.layers) and (scheme is None or num_workers % max(2, num_pipes) == 0))
    schedule = "chimera" if scheme else name
    sizes = num_replicas, num_workers, num_stages
    way = LayoutCandidate(*sizes, schedule, scheme, number, 2, recompute, num_pipes)  # type: ignore[arg-type]
    layout = predict(way, profile, links, Choices(2 * number * num_replicas))
    assert lower_bound_s(way, profile, links) <= layout.predicted_step_s


@settings(max_examples=scaled(25), deadline=None)
@given(profiles(), links, st.integers(4, 40))
def test_more_ranks_are_never_slower_and_the_curve_rises(
    profile: ModelProfile, links: LinkCosts, batch: int
) -> None:
    layouts = best_layouts(5, profile, links, Choices(batch))
    steps = [layout.predicted_step_s for layout in layouts]
    assert all(later <= earlier * (1 + 1e-8) for earlier, later in pairwise(steps))
    points = curve(layouts)
    assert points[0][0] == 1
    assert all(n < m and r < s for (n, r), (m, s) in pairwise(points))
