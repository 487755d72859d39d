# Development tasks; `make` lists them. `make run` and `make test` need only Python 3.11 or newer, and
# install everything else.

BIN := .venv/bin
PORT ?= 8000

# python3 may be an old version, so use the first one that is new enough.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
  $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

# Stamp files of completed installs; a changed pin makes them stale.
TRAIN := .venv/.installed-train
DEV := .venv/.installed-dev
PINS := pyproject.toml constraints.txt package.json package-lock.json hatch_build.py
# Created by the install; if it is missing, install again.
VENDOR := $(if $(STUDIO_SKIP_NPM),,static/vendor/.stamp)

INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
PYTEST := $(BIN)/python -m pytest
PARALLEL := --numprocesses auto --maxprocesses 8 --dist worksteal
# The fast tests create and delete tens of thousands of folders: use /dev/shm if it has 4 GB free.
MEMORY := $(shell test -w /dev/shm && df -k /dev/shm | awk 'END { if ($$4 > 4000000) \
  print "PYTEST_DEBUG_TEMPROOT=/dev/shm" }')

.DEFAULT_GOAL := help
.PHONY: help run test test-all check fix e2e slow faults test-postgres gpu image bench bench-peers lighthouse audit sbom shots \
  pictures recording docs site words starter db hooks clean

help:
	@echo "Mantissa Studio: make run, then open the address it prints."
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name what; do \
	  printf '  make %-10s %s\n' "$$name" "$$what"; done

run: $(TRAIN) ## install what is missing and open the studio (PORT=8000, STUDIO_HOME=folder)
	@exec $(BIN)/studio serve --open --port $(PORT)

test: $(DEV) browser ## install what is missing and run the tests that need no GPU
	$(PYTEST) $(PARALLEL) -m "not gpu and not bench and not image"

test-all: $(DEV) browser ## run every test that needs no GPU, and record that all passed
	$(PYTEST) $(PARALLEL) -m "not gpu and not bench and not image" --all
	$(BIN)/python -m tests.tools.due_tests

check: $(DEV) ## lint, types, import contracts; unit, contract and property tests, in a minute
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MEMORY) $(PYTEST) $(PARALLEL) -o tmp_path_retention_policy=failed \
	  tests/unit tests/contract tests/property -m "not slow"

fix: $(DEV) ## format the code and apply ruff's fixes
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

e2e: $(DEV) browser ## run the tests in a real browser
	$(PYTEST) -m e2e --all

slow: $(DEV) ## run the tests that train models on the CPU
	$(PYTEST) -m "slow and not gpu" --all

faults: $(DEV) ## run the fault injection tests: kills, full disks, locks, lost connections
	$(PYTEST) -m faults --all

test-postgres: $(DEV) ## run the tests of pages, services and the worker on PostgreSQL
	STUDIO_TEST_POSTGRES=1 $(PYTEST) $(PARALLEL) tests/db tests/web tests/worker --all

gpu: $(DEV) ## run the tests that need a GPU
	$(PYTEST) -m gpu

image: $(DEV) ## build the Docker image without Docker, and train in it; needs root and buildah
	$(PYTEST) -m image

bench: $(DEV) browser ## run the benchmarks and check their budgets
	$(BIN)/python -m tests.bench

bench-peers: $(DEV) ## train beside LLaMA-Factory and a bare TRL script, each in an environment of its own
	$(BIN)/python -m tests.bench peers

lighthouse: $(DEV) browser ## run Lighthouse on every page, and fetch it and its Node if needed
	$(BIN)/python -m tests.bench.lighthouse

audit: $(DEV) ## scan the code and the pinned packages for vulnerabilities
	$(BIN)/python -m tests.tools.audit

sbom: $(DEV) ## write a software bill of materials to test-results/sbom.json
	$(BIN)/python -m tests.tools.audit sbom

shots: $(DEV) browser ## take screenshots of every page into test-results/shots
	$(BIN)/python -m tests.tools.screenshots test-results/shots

pictures: $(DEV) browser ## take the pictures of the README, from two real runs (minutes)
	$(BIN)/python -m tests.tools.pictures

recording: $(DEV) browser ## record the half minute shown in the README; needs ffmpeg
	$(BIN)/python -m tests.tools.recording

docs: $(DEV) ## regenerate docs/knobs.md, failures.md and openapi.json
	$(BIN)/studio docs

site: $(DEV) ## build the documentation as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

words: $(DEV) ## update the message catalogues for translation
	$(BIN)/python -m tests.tools.message_catalogue

starter: $(DEV) ## rebuild the starter's rows and base model (minutes)
	$(BIN)/python -m tests.tools.starter.build

db: $(DEV) ## create a migration: make db NAME="add tags to runs"
	@test -n "$(NAME)" || { echo 'Describe the change: make db NAME="add tags to runs"'; exit 1; }
	$(BIN)/python -m tests.tools.new_migration "$(NAME)"
	$(BIN)/ruff format migrations

hooks: $(DEV) ## install the pre-commit hooks
	$(BIN)/pre-commit install

clean: ## remove generated files, except .venv
	rm -rf build dist static/vendor static/vendor.new static/vendor.old test-results
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find studio tests migrations -name __pycache__ -type d -prune -exec rm -rf {} +

# --- setup ------------------------------------------------------------------------------------

.PHONY: browser
browser: $(DEV)
	@$(BIN)/python -m tests.tools.browser

$(TRAIN): $(PINS) $(VENDOR) | $(BIN)/python
	@echo "Installing the studio into .venv. The first time takes a few minutes."
	$(INSTALL) --editable '.[train]'
	@touch $@

$(DEV): $(PINS) $(VENDOR) | $(BIN)/python
	@echo "Installing the studio and its tools into .venv. The first time takes a few minutes."
	$(INSTALL) --editable '.[train,dev]'
	@touch $(TRAIN) $@

static/vendor/.stamp: ;

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Mantissa Studio needs Python 3.11 or newer; found $$(python3 --version 2>&1)."; exit 1; }
	@$(PYTHON) -m venv --clear .venv || { rm -rf .venv; \
	  echo "This Python cannot create virtual environments. On Debian or Ubuntu: sudo apt install $(PYTHON)-venv"; exit 1; }
