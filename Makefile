# Each target sets itself up: a machine with Python 3.11 or newer and make is enough.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
LIGHT := $(VENV)-light

.PHONY: demo test test-light test-lowest quick lint bench docs notebooks clean

demo: $(VENV)/.ready  ## train, compare and report on the embedded data, a few minutes
	$(BIN)/handful demo --out handful-demo

test: lint test-light  ## everything CI runs
	$(BIN)/python -m pytest $(PYTEST)

# What 'pip install handful' brings, from the wheel and without PyTorch: its tests run there as well.
test-light: $(LIGHT)/.ready
	$(LIGHT)/bin/python tests/light.py

test-lowest: $(LIGHT)-lowest/.ready  ## the same with the lowest versions that pyproject.toml allows
	$(LIGHT)-lowest/bin/python tests/light.py

quick: $(VENV)/.ready  ## the fast tests, one process per core
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" -n auto --dist loadfile

lint: $(VENV)/.ready  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.ready  ## speed, compared with straightforward PyTorch loops
	$(BIN)/handful bench eval
	$(BIN)/handful bench train

docs: $(VENV)/.ready  ## the documentation site, in build/site; a broken link fails
	$(BIN)/python -m sphinx -q -E -W --keep-going -b html docs build/site
	@echo "Open build/site/index.html"

notebooks: $(VENV)/.ready  ## run the notebooks of docs/tutorials and store what they print
	$(BIN)/python docs/_notebooks.py

# The constraints pin what was tested. An unpinned torch may bring another release and gigabytes of GPU packages.
$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@

SOURCES := pyproject.toml README.md LICENSE $(shell find src -type f -not -path '*/__pycache__/*' -not -path '*.egg-info/*')

$(LIGHT)/.ready: constraints.txt $(SOURCES)
	$(PYTHON) -m venv $(LIGHT)
	rm -rf build/lib build/bdist.* $(LIGHT)/wheel
	$(LIGHT)/bin/python -m pip wheel --quiet --no-deps --wheel-dir $(LIGHT)/wheel .
	$(LIGHT)/bin/python -m pip install --quiet -c constraints.txt hypothesis jsonschema pytest $(LIGHT)/wheel/*.whl
	$(LIGHT)/bin/python -m pip install --quiet --no-deps --force-reinstall $(LIGHT)/wheel/*.whl
	touch $@

$(LIGHT)-lowest/.ready: tests/requirements-lowest.txt $(LIGHT)/.ready
	$(PYTHON) -m venv $(LIGHT)-lowest
	$(LIGHT)-lowest/bin/python -m pip install --quiet -r tests/requirements-lowest.txt hypothesis jsonschema pytest $(LIGHT)/wheel/*.whl
	$(LIGHT)-lowest/bin/python -m pip install --quiet --no-deps --force-reinstall $(LIGHT)/wheel/*.whl
	touch $@

clean:
	rm -rf $(VENV) $(LIGHT) $(LIGHT)-lowest .cache build handful-demo handful-bench
