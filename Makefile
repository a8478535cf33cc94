# Needs Linux, make and Python 3.11+ with venv; everything else is fetched, pinned by hash.
#
#   make demo [ORDERS=n] [RELAY=cdc] [KEEP=1]   real orders through four services over real Kafka, then the check
#   make lint | format     in seconds, before each commit: style, types, import contracts; mend what can be mended
#   make check             in a minute, after each change: lint, unit tests, lanes on fakes, one crash on real Kafka
#   make test              in ten minutes, as CI runs it: each adapter and each class of fault on the real thing
#   make verify            before an issue is called resolved: everything, with new random examples, ten
#                          thousand simulated runs, the contract suite on Kafka 3.9, and unit and lane
#                          tests on Python 3.12 and 3.13, where these are installed
#   make table             puts the seconds of the last run into tests/README.md
#   make bench             how fast it is, beside what one would use instead: benchmarks/README.md
#   make chaos [SEED=n] [LONG=1] [RATE=n]   faults on a schedule under load, the independent check, the controls
#   make up | down         the local stack alone
#   make screenshots       the pictures of the web view in docs/images
#   make docs              the documentation as a site, in var/docs
#   make wheel             dist/: a wheel with the hot path compiled; needs a C compiler
#   make requirements      pin the newest versions that pyproject.toml allows
#   make clean             remove everything made here; fetched Java parts stay in the user's cache

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

GATE := $(BIN)/python -m tests.gate

# Kept byte code halves the start of each process, of which the tests start hundreds.
unexport PYTHONDONTWRITEBYTECODE

RECENT := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
CANDIDATES := python3 python3.13 python3.12 python3.11
PYTHON ?= $(shell for each in $(CANDIDATES); do "$$each" -c '$(RECENT)' 2>/dev/null && echo "$$each" && break; done)

.PHONY: install demo check test verify table format lint bench chaos screenshots docs up down wheel requirements clean

install: $(INSTALLED)

demo: $(INSTALLED)
	@$(BIN)/python -m demo

check: lint
	@$(GATE) check --hypothesis-profile=check -m "(not stack or smoke) and not slow and not verify" \
	    tests/unit tests/lane tests/contract

test: lint
	@$(GATE) test -m "not verify"

verify: lint
	@$(GATE) verify --hypothesis-profile=verify
	@$(BIN)/python -m tests.simulation --seeds 200:10000 --processes 2
	@$(BIN)/python -m tests.versions

# Into tests/README.md, the seconds of the run before.
table: $(INSTALLED)
	@$(GATE) table

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python -m tests.evidence

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(INSTALLED)
	@$(BIN)/python -m benchmarks

chaos: $(INSTALLED)
	@$(BIN)/python -m chaos

screenshots: $(INSTALLED)
	@$(BIN)/python -m tests.browser.screenshots

docs: $(INSTALLED)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open var/docs/index.html"

up down: $(INSTALLED)
	@$(BIN)/steadfaust $@

# What an earlier one has left there would be in the next one, too.
wheel: $(INSTALLED)
	rm -rf build/lib* build/bdist*
	STEADFAUST_COMPILED=1 $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps \
	    --no-build-isolation --wheel-dir dist .

$(INSTALLED): requirements.txt pyproject.toml setup.py
	@"$(PYTHON)" -c '$(RECENT)' 2>/dev/null || { echo "error: \
	$(if $(PYTHON),$(PYTHON) is not,none of $(CANDIDATES) is) Python 3.11 or later with the venv module: \
	install one (on Debian: python3 and python3-venv), or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "installing the pinned requirements into $(VENV) ..."
	@"$(PYTHON)" -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# pip-tools is wanted here alone, so it is installed when asked for. The machine's own package index,
# if it has one, stays out of the file.
requirements: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check pip-tools
	CUSTOM_COMPILE_COMMAND="make requirements" $(BIN)/pip-compile --quiet --no-config --upgrade \
	    --all-extras --strip-extras --allow-unsafe --generate-hashes --no-emit-options \
	    --no-emit-index-url --no-emit-trusted-host --no-emit-find-links \
	    --output-file requirements.txt pyproject.toml

clean:
	@if [ -x $(BIN)/steadfaust ]; then $(BIN)/steadfaust down; fi
	rm -rf $(VENV) var build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
