# Two commands for a newcomer: `make demo` and `make test`. Both need Python 3.11+, make and a package index, no more.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
FREEZE := pyproject.toml constraints.txt

.PHONY: demo test check bench sample clean

demo: .venv/.demo ## load a real model as a frozen plan says; record, judge, compare, seal, verify
	@./demo.sh

test: .venv/.dev ## the whole suite
	$(BIN)/python -m pytest tests

check: .venv/.dev ## lint, format, types, import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/.dev ## the budgets, row by row: met, missed or skipped on this machine (BENCH=--quick: only that it runs)
	$(BIN)/python -m benchmarks $(BENCH)

sample: .venv/.demo ## the sample model's weights, in build/sample
	$(BIN)/python -m realizer.sample build/sample

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.demo: .venv/bin/python $(FREEZE)
	@echo 'Installing into .venv, torch included: this takes minutes the first time, and says nothing more.'
	$(PIP) -e '.[realize,sample]'
	@touch $@

.venv/.dev: .venv/bin/python $(FREEZE)
	@echo 'Installing into .venv, torch included: this takes minutes the first time, and says nothing more.'
	$(PIP) -e '.[realize,sample,serve,postgres,dev]'
	@touch $@ .venv/.demo

clean:
	rm -rf build dist *.egg-info
