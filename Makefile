# Every target sets up what it needs in .venv; `make` alone lists them.
.DEFAULT_GOAL := help
# The Python to make .venv with, 3.11 or newer.
PYTHON ?= python3
# What pip installs before everything else, to choose a build of torch; nothing, if it is left empty.
TORCH ?=
BIN := .venv/bin
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
# Most of torch is never imported: what is, the first process that does so compiles, and for all others, whatever
# the environment says of bytecode.
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-compile
unexport PYTHONDONTWRITEBYTECODE
# Each is there only after an installation that ended well, and only for this version of Python: of what compiles, of
# what tests need besides, and of everything. Who has more has what is less.
COMPILE := .venv/compile-$(VERSION)
TESTS := .venv/test-$(VERSION)
INSTALLED := .venv/dev-$(VERSION)
# Torchtitan asks for twenty packages. Its experts import two of them, which the extra `test` has.
TORCHTITAN := torchtitan==0.3.0
REQUIREMENTS := pyproject.toml wheels/gluonsim/pyproject.toml constraints.txt

# Install an extra, and touch the files that stand for it and for what it has too: $(call install,EXTRA,FILES).
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "gemmgen needs Python 3.11 or newer, and $(PYTHON) is $(VERSION): make PYTHON=python3.12, say" >&2; exit 1; }
	@# An environment of another Python, or of an installation that did not end, is made anew. It gets the newest
	@# pip: that of an older Python takes twice the time to choose from the index.
	@if test -e .venv/unfinished || \
	  ! $(BIN)/python -c 'import pip, sys; sys.exit("%d.%d" % sys.version_info[:2] != "$(VERSION)")' 2>/dev/null; \
	then rm -rf .venv && $(PYTHON) -m venv .venv --upgrade-deps; fi
	@echo "installing gemmgen[$(1)] into .venv (once; unless TORCH names a CPU build, torch brings 6 GB of CUDA libraries)"
	@touch .venv/unfinished
	$(if $(TORCH),$(PIP) $(TORCH))
	$(PIP) --constraint constraints.txt --editable wheels/gluonsim --editable '.[$(1)]'
	$(if $(filter test dev,$(1)),$(PIP) --no-deps $(TORCHTITAN))
	@rm -f .venv/unfinished
	@touch $(2)
endef

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

$(COMPILE): $(REQUIREMENTS)
	$(call install,triton,$(COMPILE))

$(TESTS): $(REQUIREMENTS)
	$(call install,test,$(COMPILE) $(TESTS))

$(INSTALLED): $(REQUIREMENTS)
	$(call install,dev,$(COMPILE) $(TESTS) $(INSTALLED))

docs: $(INSTALLED) ## refresh the quotations in README, docs and benchmarks, and the pictures of docs
	$(BIN)/python -m tools.quotations

site: $(INSTALLED) ## build the documentation site into build/site, strictly: a dead link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

setup: $(INSTALLED) ## install gemmgen for development into .venv

demo: $(COMPILE) ## build specs/h100_bf16.yaml; on a Hopper GPU also check its numbers and benchmark it
	$(BIN)/gemmgen build specs/h100_bf16.yaml
	@if $(BIN)/gemmgen doctor --json | grep -q '"test, bench": "yes.*h100'; then \
	  $(BIN)/gemmgen test specs/h100_bf16.yaml && $(BIN)/gemmgen bench specs/h100_bf16.yaml; \
	else \
	  echo; echo "no Hopper GPU here: numbers and speed were not measured; benchmarks/README.md lists records"; \
	fi
	@echo "the kernel is generated/h100_bf16.py; next: . .venv/bin/activate, and docs/start.md"

PYTEST := $(BIN)/python -m pytest -n auto -m 'not gpu' --speed

test: $(TESTS) ## the tests that need no compiler
	$(PYTEST) test

check: $(INSTALLED) ## what CI runs: lint, the tests of `make test`, and the tests of kernels that cover every template
	@$(MAKE) --no-print-directory --jobs=2 lint checks

checks: $(INSTALLED)
	$(PYTEST) check --durations=15 --record-verified

nightly: $(INSTALLED) ## every test that needs no GPU; those of pages need a browser, chromium
	@$(MAKE) --no-print-directory lint
	$(PYTEST) nightly --durations=15 --record-verified

lint: $(INSTALLED) ## format, lint, types, whether generated modules are what their specs say, and counts that may only fall
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/gemmgen check
	$(BIN)/python -m tools.rendered
	$(BIN)/python -m tools.counts

coverage: $(INSTALLED) ## every test that needs no GPU, and the lines that none of them runs
	$(BIN)/python -m pytest -m 'not gpu' -n auto --cov=gemmgen --cov=gluonsim --cov-report=term-missing:skip-covered

gpu: $(INSTALLED) ## the tests that need a GPU: those of Hopper modules a Hopper one, of Blackwell modules a B200
	$(BIN)/python -m pytest -m gpu

generated: $(INSTALLED) ## regenerate every module under generated/, and the digests of those of libraries and tests/pairs
	$(BIN)/gemmgen build specs/*.yaml
	$(BIN)/python -m tools.rendered --record

libraries: $(INSTALLED) ## render the committed libraries into build/libraries: set PYTHONPATH to it to import them
	$(BIN)/python -m tools.rendered

# The last commit whose benchmarks/ had all records with all samples.
RECORDS := 7a8a2c58
archives: $(INSTALLED) ## pack the committed libraries, and the records that left the tree, into build/archives
	$(BIN)/python -m tools.rendered --pack build/archives
	git archive --prefix=gemmgen-$(RECORDS)/ --output=build/archives/benchmarks-$(RECORDS).tar.gz $(RECORDS) benchmarks

wheels: $(INSTALLED) ## build the wheels of gemmgen and gluonsim, and the sdist of both, into build/wheels
	@# From the sdist: a wheel from the checkout requires the checkout's gluonsim, by its path.
	rm -rf build/wheels && $(BIN)/python -m hatchling build --target sdist --directory build/wheels
	$(BIN)/python -m pip wheel --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir build/wheels \
	  build/wheels/*.tar.gz ./wheels/gluonsim

digests: $(INSTALLED) ## record the compiled code of every module, after a change that is meant to change it
	$(BIN)/gemmgen lower specs/*.yaml --digests generated/ptx.json --record
	$(BIN)/gemmgen lower tests/pairs/specs/*.yaml --digests tests/pairs/ptx.json --record

verdicts: $(INSTALLED) ## record what the compiler says of the registers of every committed kernel, anew
	$(BIN)/python benchmarks/registers/record.py --anew specs/*.yaml tests/pairs/specs/*.yaml \
	  libraries/*/specs/*.yaml tests/invalid/rules/compiler_registers*.yaml

clean: ## remove .venv and what tools leave behind
	rm -rf .venv build .pytest_cache .ruff_cache .hypothesis .coverage

.PHONY: help setup demo lint test check checks nightly coverage gpu generated libraries archives wheels digests verdicts docs site clean
