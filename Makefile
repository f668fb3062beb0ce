# Everything a newcomer needs: `make run` and `make test`. Both make their own virtual environment.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
SLURM_NODES ?= 8
EXAMPLES := --submit examples/digits-classifier.yaml --submit examples/digits-autoencoder.yaml

.PHONY: run test lint bench slurm slurm-down system-deps lock clean
.DEFAULT_GOAL := run

## The service, an embedded cluster and two trainers; ends with Ctrl-C. ARGS adds options of `oakum serve`.
run: $(VENV)/.run
	@exec $(BIN)/oakum serve $(EXAMPLES) $(ARGS)

## All tests. What needs PostgreSQL, Chromium or Slurm is skipped by name where it is not installed; ARGS goes to pytest.
test: $(VENV)/.dev
	@$(BIN)/python -m pytest -n auto --dist loadgroup $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.run
	$(BIN)/python bench/give_back.py
	$(BIN)/python bench/solve.py
	$(BIN)/python bench/replay.py $(LOGS)
	$(BIN)/python bench/allreduce.py --ranks 4 --rounds 2
	$(BIN)/python bench/pipeline.py --workers 4 --forward-ms 5 --steps 2 --only bubbles --only layouts

## A real Slurm of SLURM_NODES virtual nodes in .slurm, until `make slurm-down`. Needs root; ARGS adds options.
slurm: $(VENV)/.run
	@PYTHONPATH=tools $(BIN)/python -m slurm_cluster up --nodes $(SLURM_NODES) $(ARGS)

slurm-down: $(VENV)/.run
	@PYTHONPATH=tools $(BIN)/python -m slurm_cluster down $(ARGS)

## Debian packages for the tests that need PostgreSQL, Chromium and Slurm. Needs root.
system-deps:
	apt-get update --quiet
	DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends \
	    postgresql chromium chromium-driver \
	    slurmctld slurmd slurm-client munge slurmrestd slurm-wlm-jwt-plugin slurmdbd slurm-wlm-mysql-plugin mariadb-server

## Pin what is installed now, after an upgrade of a dependency.
lock: $(VENV)/.dev
	$(BIN)/python -m pip freeze --exclude-editable --exclude pip --exclude setuptools \
	    | sed --regexp-extended 's/\+[a-z0-9.]+$$//' > constraints.txt

clean:
	rm -rf $(VENV) .oakum .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Oakum needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing into $(VENV); the first time this takes a few minutes."
	$(PIP) --editable '.[service,worker,examples]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing into $(VENV); the first time this takes a few minutes."
	$(PIP) --editable '.[service,worker,examples,dev]'
	@touch $@ $(VENV)/.run
