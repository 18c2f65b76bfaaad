# Every target sets up what it needs in $(VENV) and remembers it in stamp files, so a second run costs nothing.
# Another interpreter: make test PYTHON=python3.13 VENV=.venv-3.13

PYTHON         ?= python3
VENV           ?= .venv
# The tests wait more than they compute, so more of them than there are cores.
PYTEST_WORKERS ?= 5
PYTEST_ARGS    ?=
UV_VERSION     ?= 0.13.7

BIN  := $(VENV)/bin
PIP  := $(BIN)/python -m pip install -q --disable-pip-version-check
CODE  = $(wildcard src tests examples tools)
MADE := $(VENV)/.made
RUN  := $(VENV)/.run
TEST := $(VENV)/.test
# Lint and types have an environment of their own: mypy brings typing_extensions, which msgspec would import in every
# command of Interlock, and the start of a command is one of the things that are measured.
LINT := $(VENV)-check
# The tools that Interlock is compared with; none of them is a dependency.
COMPARE := $(VENV)-compare
# Interlock as a user installs it: the etcd extra brings typing_extensions, too.
PLAIN := $(VENV)-plain

# The pins name everything that is needed, so nothing is resolved: a new release of a package that another one asks for
# with an extra would be taken instead of its pin, and refused for its missing hash.
PINNED := --require-hashes --no-deps -r

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: bounds conformance help demo test check bench load compare grow swarms proof tools servers reference messages lock clean

help: ## Show this text
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

demo: $(RUN) ## See it work: agents, a crash, and who takes over
	@$(BIN)/interlock demo

# Five workers that collect at once would each compile all tests: in a fresh clone one does it first.
test: $(TEST) servers ## Run the tests
	@test -d tests/__pycache__ || $(BIN)/python -m pytest --collect-only -q >/dev/null 2>&1 || true
	@$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist worksteal $(PYTEST_ARGS)

check: $(LINT)/.check ## Check format, lint and types, then run the tests
	@$(LINT)/bin/ruff format --check $(CODE)
	@$(LINT)/bin/ruff check $(CODE)
	@$(LINT)/bin/mypy $(CODE)
	@$(MAKE) --no-print-directory test

bench: $(TEST) servers ## Measure this machine: SQLite, and Redis and etcd on servers of its own
	@$(BIN)/python tools/bench.py $(BENCH_ARGS)

load: $(RUN) ## Let 50 agents in 8 processes send 1,000 messages a second for a minute
	@$(BIN)/python tools/load.py $(LOAD_ARGS)

# ONLY=claims/huey measures a row, TURNS=9 takes more turns, WRITE=1 writes docs/explanation/speed.md, CHECK=1 fails
# where a goal is missed; MOST=10000 ends the growth there.
COMPARE_ARGS = --peers $(abspath $(COMPARE))/bin/python --plain $(abspath $(PLAIN))/bin/python \
	$(if $(ONLY),--only $(ONLY)) $(if $(TURNS),--turns $(TURNS)) $(if $(MOST),--most $(MOST)) $(if $(WRITE),--write) $(if $(CHECK),--check)

compare: $(TEST) $(COMPARE)/.compare $(PLAIN)/.plain servers ## Measure Interlock beside other tools, in turns
	@tools/servers --compare
	@$(BIN)/python -m tools.compare compare $(COMPARE_ARGS)

grow: $(TEST) $(COMPARE)/.compare servers ## Measure how the cost grows with agents, tasks and subscribers
	@$(BIN)/python -m tools.compare grow $(COMPARE_ARGS)

swarms: $(RUN) servers ## Let ten swarms ask each other for a minute, killed and cut off from their bus
	@$(BIN)/python -m tools.swarms_load $(SWARMS_ARGS)

proof: $(TEST) servers ## Run the long searches for a broken promise
	@$(BIN)/python -m pytest -m proof --timeout 3600 $(PYTEST_ARGS)

# BOUNDS_ARGS="--lowest tests/stores" tries one of the two, and a part of the tests.
bounds: servers | $(MADE) ## Run the tests with the lowest and with the newest versions of the dependencies
	@PYTHON="$(PYTHON)" UV_VERSION=$(UV_VERSION) PYTEST_WORKERS=$(PYTEST_WORKERS) tools/bounds $(VENV) $(BOUNDS_ARGS)

tools: $(TEST) servers ## Test the tools that measure
	@$(BIN)/python -m pytest -n $(PYTEST_WORKERS) -m "tools and not proof" $(PYTEST_ARGS)

conformance: $(TEST) ## Run the official MCP conformance suite (npm) against a server of our own
	@tools/conformance $(abspath $(BIN))/interlock

servers:
	@tools/servers

reference: $(RUN) ## Write docs/reference/ again from the code
	@$(BIN)/python tools/reference.py

messages: $(LINT)/.check ## Write the code for etcd's messages again from its proto
	@tools/etcd_messages $(LINT)/bin/python

# Keeps the pins that still fit; `make lock UPGRADE=--upgrade` moves them all.
# check.txt comes first and bounds the others, so that they never disagree.
PIN = "$$tool/bin/uv" pip compile -q --no-config --universal --python-version 3.11 --generate-hashes \
	--custom-compile-command 'make lock' $(UPGRADE)
COMPILE = $(PIN) pyproject.toml --group build

lock: $(MADE) ## Pin the dependencies again, with hashes
	@echo "Pinning the dependencies in requirements/"
	@tool=$$(mktemp -d) && trap 'rm -rf "$$tool"' EXIT && \
	$(BIN)/python -m venv "$$tool" && \
	"$$tool/bin/python" -m pip install -q --disable-pip-version-check uv==$(UV_VERSION) && \
	$(COMPILE) --extra check -o requirements/check.txt && \
	$(COMPILE) --extra test -c requirements/check.txt -o requirements/test.txt && \
	$(COMPILE) -c requirements/check.txt -o requirements/run.txt && \
	$(PIN) --group compare -o requirements/compare.txt

clean: ## Remove the virtual environment, caches and builds
	@rm -rf $(VENV) $(LINT) $(COMPARE) $(PLAIN) $(VENV)-lowest $(VENV)-newest dist build .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(MADE):
	@command -v "$(PYTHON)" >/dev/null || \
		{ echo "Interlock needs Python 3.11 or newer, but there is no $(PYTHON): install it (Debian: apt install python3 python3-venv)." >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Interlock needs Python 3.11 or newer, but $(PYTHON) is $$("$(PYTHON)" -V 2>&1): try make PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "$(PYTHON) cannot make virtual environments: install them (Debian: apt install python3-venv)." >&2; exit 1; }
	@echo "Setting up $(VENV) with $$("$(PYTHON)" -V)"
	@"$(PYTHON)" -m venv --clear $(VENV)
	@touch $@

$(RUN): requirements/run.txt pyproject.toml scripts/interlock | $(MADE)
	@echo "Installing Interlock and its dependencies"
	@$(PIP) $(PINNED) requirements/run.txt
	@$(PIP) --no-build-isolation --no-deps -e .
	@touch $@

# test.txt holds all of run.txt, so this serves `make demo` too.
$(TEST): requirements/test.txt requirements/run.txt pyproject.toml scripts/interlock | $(MADE)
	@echo "Installing Interlock, its dependencies and what the tests need"
	@$(PIP) $(PINNED) requirements/test.txt
	@$(PIP) --no-build-isolation --no-deps -e .
	@touch $(RUN) $@

$(LINT)/.check: requirements/check.txt | $(MADE)
	@echo "Setting up $(LINT) with the tools that check"
	@"$(PYTHON)" -m venv --clear $(LINT)
	@$(LINT)/bin/python -m pip install -q --disable-pip-version-check $(PINNED) requirements/check.txt
	@touch $@

$(COMPARE)/.compare: requirements/compare.txt | $(MADE)
	@echo "Setting up $(COMPARE) with the tools that Interlock is compared with"
	@"$(PYTHON)" -m venv --clear $(COMPARE)
	@$(COMPARE)/bin/python -m pip install -q --disable-pip-version-check $(PINNED) requirements/compare.txt
	@touch $@

$(PLAIN)/.plain: requirements/run.txt pyproject.toml scripts/interlock | $(MADE)
	@echo "Setting up $(PLAIN) with Interlock alone"
	@"$(PYTHON)" -m venv --clear $(PLAIN)
	@$(PLAIN)/bin/python -m pip install -q --disable-pip-version-check $(PINNED) requirements/run.txt
	@$(PLAIN)/bin/python -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps -e .
	@touch $@
