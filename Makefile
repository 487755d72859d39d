# Every chore by its name; `make` lists them. `make run` and `make test` need nothing before them
# but Python 3.11 or newer: what is missing, they set up.

BIN := .venv/bin
PORT ?= 8000

# The newest machines still call an old Python python3; take the first that is new enough.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
  $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

# Files that say "installed as it stands now"; a changed pin makes them stale.
TRAIN := .venv/.installed-train
DEV := .venv/.installed-dev
PINS := pyproject.toml constraints.txt package.json package-lock.json hatch_build.py
# Installing brings it; its absence means installing again.
VENDOR := $(if $(STUDIO_SKIP_NPM),,static/vendor/.stamp)

INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
PYTEST := $(BIN)/python -m pytest
PARALLEL := --numprocesses auto --maxprocesses 8 --dist worksteal
# The fast tests make and delete folders by the ten thousand: in memory, where it has 4 GB to spare.
MEMORY := $(shell test -w /dev/shm && df -k /dev/shm | awk 'END { if ($$4 > 4000000) \
  print "PYTEST_DEBUG_TEMPROOT=/dev/shm" }')

.DEFAULT_GOAL := help
.PHONY: help run test check fix e2e slow faults gpu bench audit sbom shots docs words db hooks clean

help:
	@echo "Mantissa Studio: make run, then open the address it prints."
	@sed -n 's/^\([a-z0-9]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name what; do \
	  printf '  make %-8s %s\n' "$$name" "$$what"; done

run: $(TRAIN) ## set up what is missing and open the studio (PORT=8000, STUDIO_HOME=folder)
	@exec $(BIN)/studio serve --open --port $(PORT)

test: $(DEV) browser ## set up what is missing and run every test that needs no GPU
	$(PYTEST) $(PARALLEL) -m "not gpu and not bench"

check: $(DEV) ## lint, types, floors and the tests of units, contracts and properties, in a minute
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MEMORY) $(PYTEST) $(PARALLEL) -o tmp_path_retention_policy=failed \
	  tests/unit tests/contract tests/property -m "not slow"

fix: $(DEV) ## format, and mend what ruff can mend
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

e2e: $(DEV) browser ## the tests in a real browser
	$(PYTEST) -m e2e

slow: $(DEV) ## the tests that train for real, on the CPU
	$(PYTEST) -m "slow and not gpu"

faults: $(DEV) ## the tests that kill, fill, lock and cut
	$(PYTEST) -m faults

gpu: $(DEV) ## the tests that need a GPU
	$(PYTEST) -m gpu

bench: $(DEV) ## the numbers and their budgets
	$(BIN)/python -m tests.bench

audit: $(DEV) ## look for holes in the code and in the pinned packages
	$(BIN)/python -m tests.tools.audit

sbom: $(DEV) ## write what the studio is made of to test-results/sbom.json
	$(BIN)/python -m tests.tools.audit sbom

shots: $(DEV) browser ## take pictures of every page into test-results/shots
	$(BIN)/python -m tests.tools.screenshots test-results/shots

docs: $(DEV) ## write docs/knobs.md, failures.md and openapi.json anew
	$(BIN)/studio docs

words: $(DEV) ## put what is newly said into the catalogues, to be translated
	$(BIN)/python -m tests.tools.message_catalogue

db: $(DEV) ## write a migration: make db NAME="add tags to runs"
	@test -n "$(NAME)" || { echo 'Say what changes: make db NAME="add tags to runs"'; exit 1; }
	$(BIN)/python -m tests.tools.new_migration "$(NAME)"
	$(BIN)/ruff format migrations

hooks: $(DEV) ## check each commit before it is made
	$(BIN)/pre-commit install

clean: ## remove what chores made, but for .venv
	rm -rf build dist static/vendor static/vendor.new static/vendor.old test-results
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find studio tests migrations -name __pycache__ -type d -prune -exec rm -rf {} +

# --- setting up -------------------------------------------------------------------------------

.PHONY: browser
browser: $(DEV)
	@$(BIN)/python -m tests.tools.browser

$(TRAIN): $(PINS) $(VENDOR) | $(BIN)/python
	@echo "Installing the studio into .venv. The first time takes some minutes."
	$(INSTALL) --editable '.[train]'
	@touch $@

$(DEV): $(PINS) $(VENDOR) | $(BIN)/python
	@echo "Installing the studio and its tools into .venv. The first time takes some minutes."
	$(INSTALL) --editable '.[train,dev]'
	@touch $(TRAIN) $@

static/vendor/.stamp: ;

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Mantissa Studio needs Python 3.11 or newer; here is $$(python3 --version 2>&1)."; exit 1; }
	@$(PYTHON) -m venv --clear .venv || { rm -rf .venv; \
	  echo "This Python cannot make virtual environments. On Debian or Ubuntu: sudo apt install $(PYTHON)-venv"; exit 1; }
