PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS := $(VENV)/.docs

.PHONY: install demo test lint bench docs clean

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

docs: $(DOCS)
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet docs docs/_build
	@echo "docs/_build/index.html"

$(DOCS): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	touch $(DOCS)

clean:
	rm -rf $(VENV) docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis popqorn-demo popqorn-results
