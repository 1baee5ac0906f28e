# Each target sets itself up: a machine with Python 3.10 or newer and make is enough.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test lint bench clean

demo: $(VENV)/.ready  ## train, compare and report on the embedded data, a few minutes
	$(BIN)/handful demo --out handful-demo

test: lint  ## everything CI runs; 'make test PYTEST="-m \"not slow\""' for the quick part
	$(BIN)/python -m pytest $(PYTEST)

lint: $(VENV)/.ready  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.ready  ## ours against the plain way, in one run
	$(BIN)/handful bench eval
	$(BIN)/handful bench train

# The constraints pin what was tested. An unpinned torch may bring another release and gigabytes of GPU packages.
$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) .cache handful-demo handful-bench
