# Two commands do everything on a fresh Debian/Ubuntu machine with Python 3.11+:
#   make run    environment, migrations, then the whole house on the built-in model
#   make test   environment, then every check: format, lint, types, tests
# Nothing is downloaded twice: the environment is made once and again only when pyproject.toml changes.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# torch's default wheel brings several GB of CUDA packages; where a CPU build is offered under this very version, it is taken.
ARGS ?=
# Two processes, a file at a time in their order: the slow ones are not left to the end. `make test WORKERS=` runs all in one process.
WORKERS ?= -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: run test check unit clean

run: $(VENV)/.installed
	$(BIN)/python run.py --method combine $(ARGS)

test: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict .
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(WORKERS) $(ARGS)

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
