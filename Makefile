# Two commands on a fresh machine with Python 3.11+: `make demo` and `make test`.
# Each sets up the virtual environment .venv first; the second time there is nothing to set up.

PYTHON ?= python3
BIN := .venv/bin
SOURCES := src tests benchmarks examples tools

.PHONY: help demo test test-slow test-clients test-faults test-site test-wheel lint format bench docs notebooks wheel clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: .venv/demo  ## grow two teams of collectors on the CPU (5 minutes) and write demo/report/index.html
	@JAX_PLATFORMS=cpu $(BIN)/epcx reproduce food-collection --preset quick --methods epc att-maddpg --seeds 2 --out demo

test: .venv/dev .venv/browser  ## run the tests
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder --durations 12

test-slow: .venv/dev .venv/browser  ## run the tests that take minutes, too
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder -m ''

test-clients: .venv/clients  ## Stable-Baselines3, TorchRL and JaxMARL's loops on our games (installs PyTorch)
	@$(BIN)/python -m pytest -q -m slow tests/clients

test-faults: .venv/dev  ## bad input, kills, full disks, lost workers and nodes: nothing is lost (1 hour)
	@$(BIN)/python -m tests.faults

lint: .venv/dev  ## check style and types
	@$(BIN)/ruff check $(SOURCES)
	@$(BIN)/ruff format --check $(SOURCES)
	@$(BIN)/mypy

format: .venv/dev  ## rewrite the sources in the house style
	@$(BIN)/ruff check --fix $(SOURCES)
	@$(BIN)/ruff format $(SOURCES)

docs: .venv/docs  ## build the documentation: site/index.html
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q --strict

test-site: .venv/dev .venv/browser  ## build the documentation, and read all of it in a browser (2 minutes)
	@$(BIN)/python -m pytest -q -m '' tests/test_site.py

notebooks: .venv/dev  ## run the notebooks in examples/notebooks, shortened (3 minutes)
	@$(BIN)/python -m pytest -q -m '' -n 2 tests/test_notebooks.py

wheel: .venv/dev  ## build the package: dist/
	@rm -rf dist
	@$(BIN)/python -m build --wheel --outdir dist . >/dev/null

test-wheel: wheel  ## install the package in an empty environment, train and report with it
	@PYTHON=$(BIN)/python sh tools/test-wheel dist/*.whl

bench: .venv/bench  ## measure the games beside mpe2, VMAS and JaxMARL
	@$(BIN)/python -m benchmarks.games

clean:  ## remove what the other targets made
	rm -rf .venv .cache demo build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis

# constraints.txt is the set of versions that CI has tested; pyproject.toml has lower bounds only.
.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "epcx needs Python 3.11 or newer: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "setting up .venv (once, a few minutes)"
	@$(PYTHON) -m venv .venv

.venv/%: .venv/bin/python pyproject.toml constraints.txt
	@echo "installing epcx ($*)"
	@$(BIN)/python -m pip install -q -c constraints.txt -e '.$(if $(filter demo,$*),,[$*])'
	@touch $@

# The replay page is tested in a real browser.
.venv/browser: .venv/bin/python
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || \
		command -v google-chrome >/dev/null || sh tools/install-chromium
	@touch $@
