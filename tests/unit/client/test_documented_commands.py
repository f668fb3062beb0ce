"""What README.md and the pages in docs tell to type exists; `tests/integration/test_documentation.py` runs it."""

from __future__ import annotations

import re
import subprocess
import tomllib

from cells import each
from documentation import PAGES, ROOT, blocks, commands_in_text, fault_of

_INFO = re.compile(
    r"sh|sh service|sh check: .+|console|console check: .+|console fails"
    r"|text|yaml|python|mermaid|json|html|ini|toml|http|css|javascript"
)


def test_every_block_says_what_it_is() -> None:
    """No test would run a block of commands that has no word after its fence."""
    assert {block.place: block.info for block in blocks() if not _INFO.fullmatch(block.info)} == {}


def test_text_that_is_not_run_holds_no_command() -> None:
    hidden = {
        b.place for b in blocks() if b.info == "text" and re.search(r"^\s*(sudo |\S*/)?oakum ", b.text, re.M)
    }
    assert hidden == set()


def test_every_oakum_command_of_a_block_exists() -> None:
    found = {
        f"{block.place}: {command}": fault
        for block in blocks()
        if block.info.startswith(("sh", "console"))
        for command in block.commands
        if (fault := _fault_of_line(command))
    }
    assert found == {}


def _fault_of_line(line: str) -> str | None:
    try:
        return fault_of(line)
    except ValueError:  # a quotation over several lines, of another program
        return None


def test_every_oakum_command_in_the_text_exists() -> None:
    commands = [*commands_in_text()]
    assert len(commands) > 20
    assert {f"{page}: {c}": fault for page, c in commands if (fault := fault_of(c))} == {}


@each(
    ("command", "fault"),
    [
        ("sudo OAKUM_PORT=1 .venv/bin/oakum serve --nodes 8  # a remark", None),
        ("oakum sevre", "there is no command 'sevre'"),
        ("oakum token craete alice", "there is no command 'craete'"),
        ("oakum replay log.csv --trainer 4", "replay has no option --trainer"),
        ("make run", None),
    ],
)
def test_a_command_that_does_not_exist_is_found(command: str, fault: str | None) -> None:
    assert fault_of(command) == fault


def test_blocks_that_are_only_looked_up_can_be_read_by_a_shell() -> None:
    for block in blocks():
        if block.info.startswith("sh"):
            done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, check=False)
            assert (block.place, done.stderr) == (block.place, "")


def test_every_target_that_make_is_asked_for_exists() -> None:
    asked = {t for b in blocks() for t in re.findall(r"^(?:sudo )?make ([a-z-]+)", b.text, re.M)}
    assert asked >= {"run", "test", "slurm"}
    for target in asked:
        done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=False)
        assert (target, done.returncode, done.stderr) == (target, 0, "")


def test_what_pip_is_told_to_install_can_be_had() -> None:
    """Oakum is on no package index, so extras are installed from its checkout, other libraries by version."""
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    sources = [
        path for folder in ("client", "service", "solver", "worker") for path in (ROOT / folder).rglob("*.py")
    ]
    told = [t for path in [*PAGES, *sources] for t in re.findall(r"pip install '([^']*)'", path.read_text())]
    assert len(told) >= 3
    for what in told:
        if re.fullmatch(r"[^=\s]+==[^=\s]+", what) and not what.startswith("oakum"):
            continue
        match = re.fullmatch(r"\.\[([a-z,-]+)\]", what)
        assert match is not None, what
        assert set(match[1].split(",")) <= extras
    for path in [*PAGES, *sources]:
        assert "oakum[" not in path.read_text(encoding="utf-8"), path
