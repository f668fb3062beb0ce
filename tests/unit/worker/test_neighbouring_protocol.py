"""An agent and a service of neighbouring versions understand each other.

docs/decisions/0011-neighbouring-versions.md has the rule. The messages in tests/data were written by the previous
version's own code. What this version reads from them it has to write in the same words, because the previous
version reads those.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from cells import each
from oakum_worker.errors import ConfigError
from oakum_worker.fragment import START_OPTIONS
from oakum_worker.fragment.config_files import read_config, write_config
from oakum_worker.fragment_config import FragmentConfig
from oakum_worker.protocol import Directive, FragmentReport, Held, Phase

PREVIOUS = Path(__file__).resolve().parents[2] / "data" / "protocol-0.1.0"
MODELS: dict[str, type[BaseModel]] = {
    "report": FragmentReport,
    "first-report": FragmentReport,
    "directive": Directive,
    "first-directive": Directive,
    "config": FragmentConfig,
}


def previous(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((PREVIOUS / f"{name}.json").read_text(encoding="utf-8"))
    return document


def written(message: BaseModel) -> dict[str, Any]:
    """As it crosses the network: the way in which the agent writes reports and FastAPI writes directives."""
    return message.model_dump(mode="json", by_alias=True)


def without_what_is_new(document: Any, known: Any) -> Any:
    """The part of a document that the previous version has a name for."""
    if isinstance(known, dict):
        assert isinstance(document, dict)
        return {
            name: without_what_is_new(document[name], value) for name, value in known.items() if name in document
        }
    if isinstance(known, list):
        assert isinstance(document, list)
        assert len(document) == len(known)
        return [without_what_is_new(*pair) for pair in zip(document, known, strict=True)]
    return document


@each("name", MODELS)
def test_what_the_previous_version_wrote_is_read_whole_and_written_in_its_words(name: str) -> None:
    document = previous(name)
    assert without_what_is_new(written(MODELS[name].model_validate(document)), document) == document


@pytest.mark.parametrize("name", ["first-report", "first-directive"])
def test_a_message_needs_no_field_that_the_previous_version_did_not_need(name: str) -> None:
    required = {"first-report": {"phase", "sequence", "pid", "host"}, "first-directive": {"revision"}}[name]
    assert {field for field, info in MODELS[name].model_fields.items() if info.is_required()} == required
    document = {field: value for field, value in previous(name).items() if field in required}
    assert written(MODELS[name].model_validate(document)).items() >= previous(name).items()


@pytest.mark.parametrize("name", ["report", "directive"])
def test_fields_that_a_later_version_adds_are_ignored_wherever_they_are(name: str) -> None:
    document = previous(name)

    def with_news(part: Any) -> Any:
        if isinstance(part, list):
            return [with_news(item) for item in part]
        if not isinstance(part, dict):
            return part
        # The names of a task's metrics are the task's own.
        return {key: value if key == "metrics" else with_news(value) for key, value in part.items()} | {
            "added_later": [1]
        }

    model = MODELS[name]
    assert model.model_validate(with_news(document)) == model.model_validate(document)


def test_an_option_of_the_spec_that_a_later_service_adds_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """It may mean another training: left out, the trainer would learn something else and nobody would know."""
    document = previous("config")
    document["added_later"] = 1
    file = tmp_path / "fragment.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    assert read_config(file).spec.name == "digits"
    document["spec"]["sparkle"] = True
    file.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"spec\.sparkle: Extra inputs .* install the service's version"):
        read_config(file)


def test_agents_and_services_use_only_words_that_the_previous_version_knows() -> None:
    assert previous("words") == {"phases": list(Phase), "holds": list(Held)}


def test_options_that_have_their_default_are_left_to_the_worker(tmp_path: Path) -> None:
    """A previous worker refuses options that it does not know, so those that change nothing must not be in a
    fragment's config."""
    config = FragmentConfig.model_validate(previous("config"))
    file = write_config(tmp_path, config)
    assert read_config(file) == config
    told = json.loads(file.read_text())["spec"]
    assert told.keys() == {"name", "entrypoint", "global_batch", "epochs"} | START_OPTIONS


def test_a_worker_that_knows_no_accounts_refuses_what_has_to_run_in_one(tmp_path: Path) -> None:
    """`run_as` names the account that a fragment runs in. 0.1.0 ignores it, and would run a user's code in the
    service's account."""
    run_as = {"account": "alice", "launcher": "/usr/sbin/launcher"}
    file = write_config(tmp_path, FragmentConfig.model_validate(previous("config") | {"run_as": run_as}))
    assert "run_as" not in previous("config")
    assert json.loads(file.read_text())["spec"].keys() > previous("config")["spec"].keys()


def test_defaults_are_those_of_the_previous_version() -> None:
    """A fragment's config leaves them out: another default would have each version train something else."""
    known = previous("config")["spec"]
    required = {name: known[name] for name in ("name", "entrypoint", "global_batch", "epochs")}
    spec = FragmentConfig.model_validate(previous("config") | {"spec": required}).spec.model_dump(mode="json")
    assert without_what_is_new(spec, known) == known
