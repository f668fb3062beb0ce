"""Whatever is changed in an answer of Slurm, a taken node never looks free unless the answer is refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from num_examples import scaled
from oakum_service.errors import PayloadError
from oakum_service.schedulers.slurm.reading import payloads, text
from oakum_service.schedulers.slurm.reading.jobs import has_ended
from oakum_service.schedulers.slurm.reading.payloads import Origin
from slurm_payloads import RELEASES, answer, generation, job, node

ORIGIN = Origin("test", "test")
MARK = "oakum-0"
NAMES = ("n1", "n2", "n3")

parsers = st.sampled_from(sorted(RELEASES))
node_states = st.lists(
    st.tuples(
        st.sampled_from(["IDLE", "ALLOCATED", "MIXED", "DOWN"]),
        st.lists(
            st.sampled_from(["DRAIN", "PLANNED", "COMPLETING", "MAINT", "RESERVED"]), unique=True, max_size=3
        ),
    ).map(lambda told: (told[0], *told[1])),
    min_size=len(NAMES),
    max_size=len(NAMES),
)
job_states = st.lists(
    st.sampled_from([("RUNNING",), ("PENDING",), ("SUSPENDED",), ("CANCELLED", "COMPLETING"), ("COMPLETED",)]),
    min_size=len(NAMES),
    max_size=len(NAMES),
)
junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.just([]),
    st.just({}),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
    st.lists(st.text(max_size=4), max_size=2),
    st.just({"set": False, "infinite": False, "number": 0}),
)

Mutation = tuple[str, Any]


def mutated(items: list[dict[str, Any]], data: st.DataObject, *, fields: list[str] | None = None) -> list[Any]:
    """The items with one field, or one item, dropped or replaced."""
    changed = copy.deepcopy(items)
    index = data.draw(st.integers(0, len(changed) - 1))
    field = data.draw(st.sampled_from(fields or sorted(changed[index])))
    if data.draw(st.booleans()):
        changed[index].pop(field, None)
    else:
        changed[index][field] = data.draw(junk)
    return changed


def usable(states: tuple[str, ...]) -> bool:
    return states[0] == "IDLE" and not set(states[1:])


def refused_or(read: Callable[[], Any]) -> Any:
    """What is read, or None if it is refused by the one error that callers expect."""
    try:
        return read()
    except PayloadError:
        return None


@settings(max_examples=scaled(400), deadline=None)
@given(parsers, node_states, st.data())
def test_no_mutation_of_a_node_makes_it_usable(
    parser: str, states: list[tuple[str, ...]], data: st.DataObject
) -> None:
    items = [node(parser, name, *told) for name, told in zip(NAMES, states, strict=True)]
    changed = mutated(items, data)
    read = refused_or(lambda: payloads.read_nodes(answer(parser, "nodes", changed), ORIGIN).values)
    if read is None:
        return
    told = {name: frozenset(told) for name, told in zip(NAMES, states, strict=True)}
    names = [item.get("name") for item in changed]
    named = [(changed[at], items[at]) for at, name in enumerate(names) if isinstance(name, str) and name]
    for found, (given_item, original) in zip(read, named, strict=True):
        if found.states == ("UNKNOWN",):
            continue  # it could not be understood, and is unavailable
        if given_item.get("state") == original["state"] and _flags(given_item) == _flags(original):
            assert frozenset(found.states) == told[original["name"]]
        else:
            # Whoever changed the state itself wrote another legal one.
            assert usable(found.states) <= _says_idle(given_item)


@settings(max_examples=scaled(400), deadline=None)
@given(parsers, job_states, st.data())
def test_no_mutation_of_a_job_frees_the_node_that_it_runs_on(
    parser: str, states: list[tuple[str, ...]], data: st.DataObject
) -> None:
    items = [
        job(parser, 10 + index, *told, nodes="" if told == ("PENDING",) else name)
        for index, (name, told) in enumerate(zip(NAMES, states, strict=True))
    ]
    fields = sorted(set(items[0]) - {"job_state", "nodes"})
    changed = mutated(items, data, fields=fields)
    read = refused_or(lambda: payloads.read_jobs(answer(parser, "jobs", changed), ORIGIN).values)
    if read is None:
        return
    holding = {
        name for name, told in zip(NAMES, states, strict=True) if told not in (("PENDING",), ("COMPLETED",))
    }
    # A job that ended because Slurm preempted it is read for its end; it holds no node any more.
    assert {found.nodes for found in read if found.nodes and not has_ended(found.states)} == holding


@settings(max_examples=scaled(400), deadline=None)
@given(parsers, st.sampled_from(["RUNNING", "SUSPENDED"]), junk)
def test_no_other_value_for_a_running_jobs_nodes_passes_for_none(parser: str, state: str, nodes: Any) -> None:
    body = answer(parser, "jobs", [job(parser, 7, state) | {"nodes": nodes}])
    read = refused_or(lambda: payloads.read_jobs(body, ORIGIN))
    assert read is None or read.unread or read.values[0].nodes == nodes != ""


@settings(max_examples=scaled(400), deadline=None)
@given(parsers, st.data())
def test_an_answer_cut_short_is_refused(parser: str, data: st.DataObject) -> None:
    body = answer(parser, "jobs", [job(parser, 7, "RUNNING", nodes="n1")])
    cut = body[: data.draw(st.integers(0, len(body) - 1))]
    assert refused_or(lambda: payloads.read_jobs(cut, ORIGIN)) is None


documents = st.dictionaries(
    st.sampled_from(["jobs", "nodes", "errors", "last_update", "reservations", "meta"]),
    junk | st.lists(junk, max_size=3),
)


@settings(max_examples=scaled(400), deadline=None)
@given(st.binary(max_size=200) | documents.map(lambda told: json.dumps(told).encode()))
@pytest.mark.parametrize("read", [payloads.read_nodes, payloads.read_jobs, payloads.read_reservations])
def test_anything_else_is_refused_or_empty(read: Callable[[bytes, Origin], Any], body: bytes) -> None:
    found = refused_or(lambda: read(body, ORIGIN))
    assert found is None or found.values == ()


@settings(max_examples=scaled(400), deadline=None)
@given(parsers, st.dictionaries(st.text(min_size=1, max_size=8), junk, max_size=4))
def test_unknown_fields_change_nothing(parser: str, more: dict[str, Any]) -> None:
    plain = job(parser, 7, "RUNNING", nodes="n1")
    unknown = {name: value for name, value in more.items() if name not in plain and name != "scheduled_nodes"}
    assert (
        payloads.read_jobs(answer(parser, "jobs", [plain | unknown]), ORIGIN).values
        == payloads.read_jobs(answer(parser, "jobs", [plain]), ORIGIN).values
    )


@settings(max_examples=scaled(400), deadline=None)
@given(st.lists(st.text(max_size=40).filter(lambda name: MARK not in name and "\r" not in name), max_size=4))
def test_job_names_are_read_as_they_are(names: list[str]) -> None:
    lines = "".join(
        f"{index}|{index}|N/A|ada|main|RUNNING|q|n{index}|(null)|1|5|6|7|N/A|None|(null)|{name}|{MARK}\n"
        for index, name in enumerate(names)
    )
    read = text.read_jobs(lines.encode(), MARK, ORIGIN).values
    assert [(found.name, found.nodes) for found in read] == [(name, f"n{i}") for i, name in enumerate(names)]


@settings(max_examples=scaled(400), deadline=None)
@given(st.binary(max_size=200))
def test_text_that_is_none_of_slurms_is_refused_or_empty(output: bytes) -> None:
    assert refused_or(lambda: text.read_nodes(output, ORIGIN)) is None
    assert not refused_or(lambda: text.read_jobs(output, MARK, ORIGIN).values)
    assert not text.read_reservations(output, ORIGIN).values


def _flags(item: dict[str, Any]) -> Any:
    return item.get("state_flags")


def _says_idle(item: dict[str, Any]) -> bool:
    states = item.get("state")
    told = [states] if isinstance(states, str) else list(states or [])
    return [state.upper() for state in told + list(item.get("state_flags") or [])] == ["IDLE"]


def test_every_parser_is_covered() -> None:
    assert {generation(parser) for parser in RELEASES} == set(range(37, 45))
