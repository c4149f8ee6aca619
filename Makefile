# Every target does its own set-up: `make demo` and `make test` work on a fresh clone.
PYTHON ?= python3
CORES ?= all
# Two processes, a file's tests in one: most tests wait for other processes, and some files build a project first.
PARALLEL = -n 2 --dist loadfile
# A new order each time, to find tests that lean on others; in CI one order, so that its verdict is the commit's.
ORDER = $(if $(CI),--randomly-seed=1)
PYTEST = .venv/bin/python -m pytest -rs $(PARALLEL) $(ORDER)
AS_USER = .venv/bin/python tools/as_ordinary_user.py
PYTEST_AS_USER = -m pytest -rs $(PARALLEL) $(ORDER) -p no:cacheprovider
# What cannot differ by user is not run again for one.
UNIT_BY_USER = $(shell grep -lE '\bidmap\b|mark\.user' tests/unit/test_*.py)
SKETCHES = Snakefile workflow/rules
AS_ROOT_ALSO = $(if $(filter 0,$(shell id -u)),test-sandbox-user)

# Snakemake's jobs call `minisandbox` by name.
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.DEFAULT_GOAL := help
.PHONY: demo test check lint test-unit test-sandbox test-sandbox-user test-workflow plan clean help venv-build venv-dev

demo: venv-build  ## build the embedded instances, validate them, list them
	@snakemake --cores $(CORES) && minisandbox ls --strict

test: check test-sandbox $(AS_ROOT_ALSO) test-workflow  ## everything there is to check

check: lint test-unit  ## formatting, lint, types, spelling, unit tests: quick, before each commit

lint: venv-dev  ## the part of check that runs no test
	@ruff format --check . && ruff check . && snakefmt --check $(SKETCHES) && snakemake --lint && pyright && codespell

test-unit: venv-dev  ## tests of pure logic
	@$(PYTEST) tests/unit

test-sandbox: venv-dev  ## the sandbox and the field's known hazards, as whoever you are
	@$(PYTEST) tests/sandbox tests/hazards tests/integrations

test-sandbox-user: venv-dev  ## as root: all of this once more as an ordinary user, with a range of ids and with one; then the main job
	@$(AS_USER) --with-range $(PYTEST_AS_USER) tests/sandbox tests/hazards tests/integrations
	@$(AS_USER) $(PYTEST_AS_USER) $(UNIT_BY_USER) tests/workflow/test_end_to_end.py

test-workflow: venv-dev  ## the pipeline end to end (needs the package index)
	@$(PYTEST) tests/workflow

plan: venv-build  ## what a build would do, without doing it
	@snakemake --cores 1 --dry-run

clean:  ## remove the environment and everything built
	@find results -mindepth 1 -maxdepth 1 ! -name README.md -exec rm -rf {} + && rm -rf .venv .venv.lock .snakemake .pytest_cache .ruff_cache

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## */\1  /p' Makefile | awk -F '  ' '{printf "make %-18s %s\n", $$1, $$2}'

venv-build:
	@$(PYTHON) tools/bootstrap.py build

venv-dev:
	@$(PYTHON) tools/bootstrap.py build dev
