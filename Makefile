# Everything a newcomer needs: `make run` and `make test`. Both make their own virtual environment.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt
SLURM_NODES ?= 8
TIMES ?= 3
HOOKS := service/oakum_service/schedulers/slurm/hooks/scripts
EXAMPLES := --submit examples/digits-classifier.yaml --submit examples/digits-autoencoder.yaml

TIERS := contract property integration crash browser
# Tests of Slurm and of services wait for processes that they have started: two workers more than cores keep the cores
# busy. Each further one costs ten CPU seconds for imports and collection.
WORKERS ?= $(shell echo $$(($$(nproc) + 2)))
# tests/conftest.py orders the tests.
# Hundreds of processes read these sources: with bytecode, none compiles them anew.
PARALLEL = -n $(WORKERS) --dist loadgroup --no-loadscope-reorder
# Python without assert statements would find little wrong.
unexport PYTHONOPTIMIZE
PYTEST = PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest $(PARALLEL)

.PHONY: run test unit soak $(TIERS) slurm-tests steady coverage lint screenshots openapi bench slurm slurm-down system-deps lock clean
.DEFAULT_GOAL := run

## The service, an embedded cluster and two trainers; ends with Ctrl-C. ARGS adds options of `oakum serve`.
run: $(VENV)/.run
	@exec $(BIN)/oakum serve $(EXAMPLES) $(ARGS)

## All tests; what fails is run once more, alone. What needs a program that is not installed is skipped by name. ARGS goes to pytest.
test: $(VENV)/.dev
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python tools/second_look.py $(PARALLEL) $(ARGS)

## What starts next to nothing: unit, property and contract tests, a worker on each core.
unit: $(VENV)/.dev
	@$(PYTEST) -n auto tests/unit tests/property tests/contract $(ARGS)

## Long and random tests, for an hour: sweeps over sizes, repeated kills, thousands of examples. `make test` leaves them out.
soak: $(VENV)/.dev
	@$(PYTEST) -m soak $(ARGS)
	@$(PYTEST) -n auto --hypothesis-profile=soak -m hypothesis --timeout=1800 $(ARGS)

## One tier of the tests: `make contract`, `make crash`.
$(TIERS): $(VENV)/.dev
	@$(PYTEST) tests/$@ $(ARGS)

## Tests again and again beside endless loops, and which of them ever failed: `make steady TIMES=5 ARGS=tests/crash`.
steady: $(VENV)/.dev
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python tools/steady.py --times $(TIMES) -- $(PARALLEL) $(ARGS)

## The tests on a real Slurm, which they set up and take down.
slurm-tests: $(VENV)/.dev
	@$(PYTEST) tests/slurm $(ARGS)

## The same commands as .pre-commit-config.yaml. Each Slurm hook is checked as it is installed: after the part that all have in common.
lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/shellcheck .ci/run
	bash -c 'set -o pipefail; cat $(HOOKS)/common.sh $(HOOKS)/hook.sh | $(BIN)/shellcheck -'
	bash -c 'set -o pipefail; cat $(HOOKS)/common.sh $(HOOKS)/replay.sh | $(BIN)/shellcheck -'
	$(BIN)/oxlint --deny-warnings service/oakum_service/dashboard client/oakum_client/demo solver/oakum_solver/replay

## Share of the lines that the unit tests run, by package; what they start as processes of their own is not counted.
coverage: WORKERS = auto
coverage: $(VENV)/.dev
	@$(PYTEST) tests/unit --cov --cov-report= $(ARGS)
	@for package in solver worker service client; do \
	    echo "oakum_$$package: $$($(BIN)/coverage report --include="$$package/*" --format=total) %"; \
	done

## Pictures of the dashboard's views in all states into screenshots/index.html; ARGS=--docs renews the README's, too.
screenshots: $(VENV)/.dev
	$(BIN)/python tools/screenshots.py $(ARGS)

## Write the REST API's description into docs, after a change of the API.
openapi: $(VENV)/.dev
	$(BIN)/python tools/openapi_document.py > docs/openapi.json

bench: $(VENV)/.run
	$(BIN)/python bench/give_back.py
	$(BIN)/python bench/solve.py
	$(BIN)/python bench/replay.py $(LOGS)
	$(BIN)/python bench/allreduce.py --ranks 4 --rounds 2
	$(BIN)/python bench/tensor.py --samples 72 --width 72 --rounds 2
	$(BIN)/python bench/pipeline.py --workers 4 --forward-ms 5 --steps 2 --only bubbles --only layouts
	$(BIN)/python bench/advise.py --rounds 2
	$(BIN)/python bench/lost_peers.py --kills 10

## A real Slurm of SLURM_NODES virtual nodes in .slurm, until `make slurm-down`. Needs root; ARGS adds options.
slurm: $(VENV)/.run
	@PYTHONPATH=tools $(BIN)/python -m slurm_cluster up --nodes $(SLURM_NODES) $(ARGS)

slurm-down: $(VENV)/.run
	@PYTHONPATH=tools $(BIN)/python -m slurm_cluster down $(ARGS)

## Debian packages for the tests that need PostgreSQL, Chromium, Slurm and more. Needs root.
system-deps:
	apt-get update --quiet
	DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends \
	    postgresql chromium chromium-driver default-jre-headless systemd \
	    slurmctld slurmd slurm-client munge slurmrestd slurm-wlm-jwt-plugin slurmdbd slurm-wlm-mysql-plugin mariadb-server
	@DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends sudo \
	    || echo "Without sudo the tests of users' own Unix accounts are skipped."

## Pin what is installed now, after an upgrade of a dependency.
lock: $(VENV)/.dev
	$(BIN)/python -m pip freeze --exclude-editable --exclude pip --exclude setuptools \
	    | sed --regexp-extended 's/\+[a-z0-9.]+$$//' > constraints.txt

clean:
	rm -rf $(VENV) .oakum .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Oakum needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	@echo "Making a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing into $(VENV). The first time this takes a few minutes; what follows is pip's progress."
	@$(PIP) --editable '.[service,worker,examples]'
	@echo "Installed."
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing into $(VENV). The first time this takes a few minutes; what follows is pip's progress."
	@$(PIP) --editable '.[service,worker,examples,spark,hugging-face,lightning,tensorboard,dev]'
	@echo "Installed."
	@touch $@ $(VENV)/.run
