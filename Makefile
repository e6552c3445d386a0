# Commands for a fresh Debian/Ubuntu machine with Python 3.11+:
#   make run        environment, migrations, then all processes
#   make test       environment, then format, lint, types and the local test suite (minutes)
#   make test-all   the same with whole systems, long runs and engines; CI runs this
# For development: `make check` (lint, types and the quick tests) and `make one T=tests/recorder/test_linking.py`.
# The environment is created once, and updated when pyproject.toml or requirements.lock changes.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
# A file stays on one process, because its tests share a server and, in tests/e2e, its record. `make test WORKERS=` uses one process.
# Many tests wait for other processes: a third worker uses that time. `test-all`, which CI runs, has two.
WORKERS ?= -n $(PROCESSES) --dist loadfile --no-loadscope-reorder

# Tests of pure code and of the store: no server, no training.
QUICK := tests/test_architecture.py tests/test_docs.py tests/store tests/cli tests/recorder/test_linking.py tests/wire/test_classify.py \
	tests/scorers/test_reactions.py tests/scorers/test_parse.py tests/trainer/test_advantages.py tests/trainer/test_losses.py \
	tests/trainer/test_playbook.py tests/trainer/test_batch.py

# Where the environment forbids byte code, each process that a test starts would compile every module again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run test test-all check static one clean

run: $(VENV)/.installed
	$(BIN)/python run.py --method combine $(ARGS)

test: PROCESSES = 3
test: static
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(WORKERS) --hypothesis-profile=local -m "not slow and not long_run and not vllm and not tinker and not heavy_client" --durations=30 $(ARGS)

test-all: PROCESSES = 2
test-all: static
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(WORKERS) -m "not heavy_client" --durations=30 $(ARGS)

# A quick test may use at most 2 s of CPU time; a slower one fails here.
check: static
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 -m "not slow and not long_run" --max-cpu-s=2 --hypothesis-profile=quick $(QUICK)

static: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict .

one: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(T) $(ARGS)

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("Patina needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV) || { echo "python3-venv is missing: sudo apt-get install python3-venv"; rm -rf $(VENV); exit 1; }

$(VENV)/.installed: pyproject.toml requirements.lock | $(VENV)/bin/python
	$(BIN)/python scripts/install.py
	touch $@

$(VENV)/.installed-test: pyproject.toml requirements.lock | $(VENV)/bin/python
	$(BIN)/python scripts/install.py test postgres
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV)
