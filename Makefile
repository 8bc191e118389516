# make demo | test | check | docs | bench | fuzz | faults: each sets up .venv by itself on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests and the demo run many small kernels side by side; one OpenMP thread each keeps them from waiting on each other.
WORKERS ?= 2
FUZZ_MINUTES ?= 10
FUZZ_SEED ?= 0

.PHONY: demo test check format docs bench fuzz faults clean
.DELETE_ON_ERROR:

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

# Associative recall: softmax fails, couplings solve it, so does a quantum anneal; then the fidelity of the couplings.
demo: $(VENV)/.installed
	rm -rf demo
	OMP_NUM_THREADS=1 $(BIN)/diabat train recall-softmax
	OMP_NUM_THREADS=1 $(BIN)/diabat train recall-exact
	OMP_NUM_THREADS=1 $(BIN)/diabat train recall-dqa
	OMP_NUM_THREADS=1 $(BIN)/python -m experiments.recall_figure demo
	OMP_NUM_THREADS=1 $(BIN)/diabat fidelity recall-fidelity --figure demo/fidelity.png
	@echo "Figures and runs are in demo/."

test: $(VENV)/.installed
	OMP_NUM_THREADS=1 MPLBACKEND=Agg $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

check: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site, in docs/_build/html, with warnings as errors; notebooks run once, and again after a change.
docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -b html -W --keep-going docs docs/_build/html

# Time every case beside its peers, in one report; see python -m benchmarks --help for a part of it.
bench: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python -m benchmarks

# Random calls and damaged files; every finding is printed with the command that replays it.
fuzz: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python -m fuzz --minutes $(FUZZ_MINUTES) --seed $(FUZZ_SEED) --workers $(WORKERS)

# A training whose every file operation fails or is the last, kills, NaN.
faults: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python -m fuzz.faults

clean:
	rm -rf $(VENV) demo docs/_build docs/reference/generated build dist .pytest_cache .mypy_cache .ruff_cache
