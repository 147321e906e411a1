# make demo: the method against cross-entropy, in a minute.   make test: all tests and the lint.   make quick: what fits
# into 90 seconds on two cores.   make docs: the site, in docs/_build/html.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test all-tests quick lint bench mutants results docs env clean

demo: env
	$(BIN)/balpoe demo

# Kept, or every process that the tests start would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

# One thread each for what is started twice on two cores: threads that wait for each other burn both.
test quick: export OMP_NUM_THREADS = 1
test quick: export OPENBLAS_NUM_THREADS = 1

# The lint beside the tests, not before them: it has one process, and tests sometimes wait.
test: env
	@$(MAKE) --no-print-directory --jobs 2 lint all-tests

all-tests: env
	$(BIN)/python -m pytest -n 2 --dist worksteal

quick: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not slow' -q tests

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: env
	$(BIN)/python benchmarks/cpu_experts.py

mutants: env
	$(BIN)/python benchmarks/mutants.py

results: env
	$(BIN)/python docs/tables.py
	$(BIN)/python docs/rivals_figure.py
	$(BIN)/python docs/seconds_figure.py
	$(BIN)/python docs/decision_tables.py
	$(BIN)/python docs/fine_tuning_tables.py
	$(BIN)/python docs/explanation_figures.py

# Warnings are errors. GALLERY=0 leaves the scripts of the gallery unexecuted: their figures are missing then.
GALLERY ?= 1
docs: env
	$(BIN)/sphinx-build -W --keep-going -q -D plot_gallery=$(GALLERY) docs docs/_build/html
	@echo docs/_build/html/index.html

env: $(VENV)/ready

$(VENV)/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
		{ echo "balpoe needs Python 3.11, 3.12 or 3.13: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@echo "installing into $(VENV): some minutes the first time"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,docs]'
	touch $@

clean:
	rm -rf $(VENV) docs/_build docs/gallery docs/reference/generated .mypy_cache .pytest_cache .ruff_cache .hypothesis
