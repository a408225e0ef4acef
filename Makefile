# Chores in one word. Needs only Python 3.11+ and make; everything is installed into .venv.
PYTHON ?= python3
BIN := .venv/bin

demo: .venv/installed ## measure the gaps of a real trace
	$(BIN)/tracekit gaps sample_traces/pdl_chain_node.sqlite --by range

test: .venv/installed-dev ## lint, types and tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -m "not gpu" --cov --cov-report=term

nightly: .venv/installed-dev ## the fuzz tests with over 10,000 inputs
	TRACEKIT_FUZZ=34 $(BIN)/python -m pytest tests/test_fuzz.py tests/test_kineto.py tests/test_sidecar.py

golden: .venv/installed-dev ## renew the golden files after a change that was meant
	TRACEKIT_RENEW_GOLDEN=1 $(BIN)/python -m pytest tests/test_golden.py tests/test_readme.py -k "golden or renew"

mutants: .venv/installed-dev ## mutation testing of the gap core: what no test notices, see docs/mutants.md
	$(BIN)/mutmut run
	$(BIN)/mutmut results

bench: .venv/installed ## the README's performance figures
	$(BIN)/python -m benchmarks.gaps_speed

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group dev
	touch $@

.PHONY: demo test nightly golden mutants bench
