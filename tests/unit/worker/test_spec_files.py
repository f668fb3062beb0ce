"""A spec's file: whatever is in it, there is a spec or one message that says what to change."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cells import each
from oakum_worker.errors import SpecError
from oakum_worker.spec import TrainerSpec, read_spec

SPEC = "name: digits\nentrypoint: tasks.digits:task\nglobal_batch: 96\nepochs: 2\n"
LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


def read(folder: Path, text: str) -> TrainerSpec:
    file = folder / "spec.yaml"
    file.write_text(text)
    return read_spec(file)


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(SpecError) as refused:
        read(folder, text)
    return str(refused.value).removeprefix(f"{folder / 'spec.yaml'}:").strip()


@pytest.mark.parametrize(("line", "expected"), [("", "."), ("workdir: src\n", "src"), ("workdir: ..\n", "..")])
def test_the_working_directory_is_relative_to_the_file(tmp_path: Path, line: str, expected: str) -> None:
    assert read(tmp_path, SPEC + line).workdir == str((tmp_path / expected).resolve())


def test_no_working_directory_at_all_can_be_asked_for(tmp_path: Path) -> None:
    assert read(tmp_path, SPEC + "workdir: null\n").workdir is None


@each("value", ["5", "[a]", "{a: 1}", "1.5", "true"])
def test_a_working_directory_that_is_no_text_is_named(tmp_path: Path, value: str) -> None:
    assert refusal(tmp_path, f"{SPEC}workdir: {value}\n") == "workdir: Input should be a valid string"


def test_nesting_beyond_reason_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, "[" * 20_000) == "is nested too deep: pass a file's name instead"


@pytest.mark.timeout(10)
def test_aliases_are_refused_before_they_unfold(tmp_path: Path) -> None:
    assert "*a is an alias: write the value out" in refusal(tmp_path, SPEC + "arguments:\n  x: &a [1]\n  y: *a\n")
    assert "is an alias" in refusal(tmp_path, LAUGHS)
    assert "is an alias" in refusal(tmp_path, "a: &a\n  b: *a\n")


@each(
    "value",
    ["2026-13-99", "!!bool maybe", "!!int ''", "!!timestamp noon", "!!python/name:os.system"],
)
def test_a_value_that_is_not_what_its_form_says_is_refused(tmp_path: Path, value: str) -> None:
    assert refusal(tmp_path, f"{SPEC}arguments:\n  x: {value}\n").startswith("is neither YAML nor JSON: ")


LARGE = 200_000
TEXTS = {
    "many values": ("[" + "1," * (LARGE // 2) + "1]", "has more than 10,000 values"),
    "many fields": ("".join(f"a{n}: 1\n" for n in range(LARGE // 9)), "has more than 10,000 values"),
    "lists within lists": ("[" * LARGE, "is nested too deep"),
    "fields within fields": ("{a: " * (LARGE // 4), "is nested too deep"),
    "a long number": (f"a: {'9' * LARGE}", "line 1: a value of 200,000 characters that is no text"),
    "a number in many parts": (f"a: 1{':1' * (LARGE // 2)}", "line 1: a value of 200,001 characters"),
    "an instant in many parts": (f"a: 1{':1' * (LARGE // 2)}.5", "line 1: a value of 200,003 characters"),
    "anchors": ("".join(f"- &a{n} 1\n" for n in range(LARGE // 12)), "has more than 10,000 values"),
    "a comment": ("#" * LARGE, "expected a mapping of fields"),
    "text": (f'"{"a" * LARGE}"', "expected a mapping of fields"),
}


@each("name", TEXTS)
def test_a_text_as_large_as_the_service_takes_is_refused_in_little_time(name: str, tmp_path: Path) -> None:
    """One core of a slow machine may take a second; a parser in Python took ten and more."""
    text, expected = TEXTS[name]
    before_s = time.process_time()
    assert expected in refusal(tmp_path, text)
    assert time.process_time() - before_s < 1


@pytest.mark.parametrize(
    ("text", "line"), [(SPEC + "checkpoint:\n\tkeep: 1\n", 6), ("\tname: a\n", 1), (SPEC + " \tseed: 1\n", 5)]
)
def test_a_tab_in_the_indentation_is_named(tmp_path: Path, text: str, line: int) -> None:
    expected = f"line {line} is indented with a tab, which YAML does not take: indent with spaces"
    assert refusal(tmp_path, text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SPEC + "seed: 1\nepochs: 5\n", "line 6: 'epochs' is given again, after line 4: keep one of them"),
        ('{"name": "a", "name": "b"}', "line 1: 'name' is given again, after line 1: keep one of them"),
        (
            SPEC + "checkpoint:\n  keep: 1\n  keep: 2\n",
            "line 7: 'keep' is given again, after line 6: keep one of them",
        ),
    ],
)
def test_a_field_that_is_given_twice_is_refused_with_its_line(tmp_path: Path, text: str, expected: str) -> None:
    assert refusal(tmp_path, text) == expected


def test_a_misspelt_field_is_one_mistake_and_not_two(tmp_path: Path) -> None:
    text = SPEC.replace("global_batch", "batch_size").replace("epochs", "epoch")
    assert refusal(tmp_path, text).splitlines() == [
        "unknown field 'batch_size': did you mean `global_batch`?",
        "  unknown field 'epoch': did you mean `epochs`?",
    ]
