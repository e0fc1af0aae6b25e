PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install demo test lint bench clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test]"
	touch $(STAMP)

demo: install
	$(BIN)/popqorn demo

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --durations=10 $(COVERAGE)

bench: install
	$(BIN)/python benchmarks/reference.py
	$(BIN)/python benchmarks/breakdown.py
	$(BIN)/python benchmarks/paper_speed.py --samples 100
	$(BIN)/python benchmarks/attacks.py --samples 20
	$(BIN)/python benchmarks/scaling.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis popqorn-demo popqorn-results
