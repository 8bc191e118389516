# make demo | test | test-slow | check | docs | look | bench | fuzz | faults: each sets up .venv by itself on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests and the demo run many small kernels side by side; one OpenMP thread each keeps them from waiting on each other.
WORKERS ?= 2
FUZZ_MINUTES ?= 10
FUZZ_SEED ?= 0

# Else every child process of the tests would compile anew the libraries that it imports.
export PYTHONDONTWRITEBYTECODE :=

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-slow check format docs look bench fuzz faults clean
.DELETE_ON_ERROR:

# What a user needs; modules are compiled when they are imported, which a user does with a part of them only.
$(VENV)/.user: pyproject.toml constraints.txt
	@echo "Installing diabat and its libraries in $(VENV): half a minute, and the time of the downloads."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --no-compile -e .
	@touch $@

# What a developer needs as well.
$(VENV)/.installed: $(VENV)/.user
	@echo "Installing the tools of developers in $(VENV)."
	@$(PIP) -e '.[dev]'
	@touch $@

# Associative recall: softmax fails, couplings solve it, so does a quantum anneal; then the fidelity of the couplings.
demo: $(VENV)/.user
	@PATH="$(abspath $(BIN)):$$PATH" OMP_NUM_THREADS=1 scripts/demo.sh

test: $(VENV)/.installed
	OMP_NUM_THREADS=1 MPLBACKEND=Agg $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow"

test-slow: $(VENV)/.installed
	OMP_NUM_THREADS=1 MPLBACKEND=Agg $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m slow

check: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site, in docs/_build/html, with warnings as errors; notebooks run once, and again after a change.
docs: $(VENV)/.installed
	$(PIP) -e '.[docs]'
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -b html -W --keep-going docs docs/_build/html

# Every page of the site in Chromium, wide and narrow and without the net: what is cut, dead or asked of other hosts.
look: docs
	$(BIN)/python scripts/look_at_site.py docs/_build/html

# Time every case beside its peers, in one report; see python -m benchmarks --help for a part of it.
bench: $(VENV)/.installed
	$(PIP) -e '.[bench]'
	$(BIN)/python -m benchmarks

# Random calls and damaged files; every finding is printed with the command that replays it.
fuzz: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python -m fuzz --minutes $(FUZZ_MINUTES) --seed $(FUZZ_SEED) --workers $(WORKERS)

# A training whose every file operation fails or is the last, kills, NaN.
faults: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python -m fuzz.faults

clean:
	rm -rf $(VENV) demo docs/_build docs/reference/generated build dist .pytest_cache .mypy_cache .ruff_cache
