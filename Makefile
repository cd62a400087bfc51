# Every target sets up what it needs in .venv; `make` alone lists them.
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

.venv/installed: pyproject.toml constraints.txt
	test -d .venv || $(PYTHON) -m venv .venv
	@echo "installing gemmgen and its dependencies into .venv (once)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

docs: .venv/installed ## refresh what the README quotes: module excerpts, the table and the plot of the records
	$(BIN)/python docs/refresh.py

setup: .venv/installed ## install gemmgen for development into .venv

demo: .venv/installed ## build specs/h100_bf16.yaml; on a Hopper GPU also check its numbers and benchmark it
	$(BIN)/gemmgen build specs/h100_bf16.yaml
	@if $(BIN)/gemmgen doctor --json | grep -q '"test, bench": "yes.*h100'; then \
	  $(BIN)/gemmgen test specs/h100_bf16.yaml && $(BIN)/gemmgen bench specs/h100_bf16.yaml; \
	else \
	  echo; echo "no Hopper GPU here: numbers and speed were not measured; see benchmarks/ for recorded runs"; \
	fi

test: .venv/installed ## format, lint, types, and every test that needs no GPU
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/gemmgen check
	$(BIN)/python -m pytest -m 'not gpu' -n auto

gpu: .venv/installed ## the tests that need a GPU: those of Hopper modules a Hopper one, of Blackwell modules a B200
	$(BIN)/python -m pytest -m gpu

generated: .venv/installed ## regenerate every module under generated/
	$(BIN)/gemmgen build specs/*.yaml

clean: ## remove .venv and what tools leave behind
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis

.PHONY: help setup demo test gpu generated docs clean
