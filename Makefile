# One virtual environment, installed by uv from one constraints file. `make` alone lists the targets.
PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --compile-bytecode --build-constraint constraints.txt
SOURCES := streamer model cache_store replay tests benchmarks docs examples

.DEFAULT_GOAL := help
.PHONY: help setup demo check test lint format docs bench soak clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.installed ## create .venv and install streamer into it

demo: $(VENV)/.installed ## learn from a synthetic stream on embedded defaults: no broker, no Redis, no GPU
	$(BIN)/streamer demo $(if $(TRAINERS),--trainers $(TRAINERS))

check: lint ## lint and the quick tests, without servers: for the inner loop, under two minutes
	$(BIN)/pytest -n 2 --dist loadfile -m "not servers and not slow"

test: lint ## lint and every test, real servers included, which the tests install and start
	$(BIN)/pytest -n 2 --dist loadfile -m "not servers"
	$(BIN)/pytest -n 3 --dist loadfile -m servers # which wait more than they compute

lint: $(VENV)/.installed-dev ## ruff, mypy and the import contract
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev ## format the sources and fix what ruff can fix
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

docs: $(VENV)/.installed ## write the tables of docs/ that come from the code
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/walks.py

bench: $(VENV)/.installed ## measure the training step on this machine
	$(BIN)/python benchmarks/step.py

soak: $(VENV)/.installed ## ever new ids at fixed limits: memory, speed, disk and quality (some minutes)
	$(BIN)/python benchmarks/soak.py

clean: ## remove the virtual environment and caches, compiled kernels too
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

$(BIN)/uv: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "streamer needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	@touch $@

$(VENV)/.installed: $(BIN)/uv pyproject.toml constraints.txt
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(INSTALL) --editable '.[dev]'
	@touch $@
