# Each target sets itself up: a machine with Python 3.10 or newer and make is enough.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test quick lint bench clean

demo: $(VENV)/.ready  ## train, compare and report on the embedded data, a few minutes
	$(BIN)/handful demo --out handful-demo

test: lint  ## everything CI runs
	$(BIN)/python -m pytest $(PYTEST)

quick: $(VENV)/.ready  ## the fast tests, one process per core
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" -n auto --dist loadfile

lint: $(VENV)/.ready  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.ready  ## speed, compared with straightforward PyTorch loops
	$(BIN)/handful bench eval
	$(BIN)/handful bench train

# The constraints pin what was tested. An unpinned torch may bring another release and gigabytes of GPU packages.
$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) .cache handful-demo handful-bench
