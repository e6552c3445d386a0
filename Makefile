# Two commands do everything on a fresh Debian/Ubuntu machine with Python 3.11+:
#   make run    environment, migrations, then the whole house on the built-in model
#   make test   environment, then every check: format, lint, types, tests
# For development: `make check` (lint, types and the quick tests) and `make one T=tests/recorder/test_linking.py`.
# Nothing is downloaded twice: the environment is made once and again only when pyproject.toml changes.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# torch's default wheel brings several GB of CUDA packages; where a CPU build is offered under this very version, it is taken.
ARGS ?=
# Two processes, a file at a time in their order: the slow ones are not left to the end. `make test WORKERS=` runs all in one process.
WORKERS ?= -n 2 --dist loadfile --no-loadscope-reorder

# Tests of pure code and of the store: no server, no training.
QUICK := tests/test_architecture.py tests/test_docs.py tests/store tests/cli tests/recorder/test_linking.py tests/recorder/test_classify.py \
	tests/scorers/test_reactions.py tests/scorers/test_parse.py tests/trainer/test_advantages.py tests/trainer/test_losses.py \
	tests/trainer/test_playbook.py tests/trainer/test_batch.py

.PHONY: run test check one clean

run: $(VENV)/.installed
	$(BIN)/python run.py --method combine $(ARGS)

test: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict .
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(WORKERS) --durations=30 $(ARGS)

check: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict .
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 -m "not slow" --hypothesis-profile=quick $(QUICK)

one: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(T) $(ARGS)

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("Patina needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV) || { echo "python3-venv is missing: sudo apt-get install python3-venv"; rm -rf $(VENV); exit 1; }

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python scripts/install.py
	touch $@

$(VENV)/.installed-test: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python scripts/install.py test postgres
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV)
