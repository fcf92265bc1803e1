# One virtual environment, installed by uv from one constraints file. `make` alone lists the targets.
PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
QUIET   := $(shell test -t 2 || echo --quiet) # uv shows its progress at a terminal
UV      := $(BIN)/uv pip install $(QUIET) --python $(BIN)/python
INSTALL := $(UV) --constraint constraints.txt --compile-bytecode --build-constraint constraints.txt --excludes $(VENV)/excluded.txt
# Of torch's CUDA build, these are loaded on a GPU only; it does not start without the others. A CPU build needs none of
# them: TORCH_INDEX=URL names an index that has one, and a registry that has torch+cpu beside torch is asked for that anyway.
GPU         := $(wildcard /dev/nvidiactl /dev/dxg)
GPU_ONLY    := triton cuda-bindings cuda-pathfinder nvidia-cusolver nvidia-nvtx
TORCH_INDEX ?=
PYTEST  := $(BIN)/pytest --no-loadscope-reorder
SOURCES := streamer model cache_store replay tests benchmarks docs examples

.DEFAULT_GOAL := help
.PHONY: help setup demo check test ready test-stress faults fuzz lint format docs pictures bench soak clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.compiled ## create .venv and install streamer into it

demo: $(VENV)/.compiled ## learn from a synthetic stream on embedded defaults: no broker, no Redis, no GPU
	$(BIN)/streamer demo

check: ready ## lint and the quick tests, without servers: for the inner loop, under two minutes
	$(PYTEST) -n 2 -m "not servers and not slow"

test: ready ## lint and every test, real servers included, which the tests install and start
	$(PYTEST) -n 4 # those with servers wait while others compute

test-stress: $(VENV)/.installed-dev ## the tests with servers beside two busy loops a core, RUNS=3 times; stops at the first that fails
	@loops=; \
	trap 'for loop in $$loops; do kill $$loop 2>/dev/null; done' EXIT; trap 'exit 1' INT TERM HUP; \
	for n in $$(seq $$((2 * $$(nproc)))); do $(PYTHON) -c 'while True: pass' & loops="$$loops $$!"; done; \
	for run in $$(seq $(or $(RUNS),3)); do \
	  echo "run $$run of $(or $(RUNS),3)"; nice -n 15 $(PYTEST) -n 3 -m servers || exit 1; \
	done

faults: $(VENV)/.installed-dev ## make every fault happen to real processes, and write docs/faults.md (some: FAULTS="NAME ..."; BACKLOG=2000000)
	PYTHONPATH=tests:benchmarks $(BIN)/python -m faults $(FAULTS)

fuzz: $(VENV)/.installed-dev ## a million malformed inputs for everything that reads (or some: FUZZ="redis --scale 0.1")
	PYTHONPATH=tests:. $(BIN)/python -m fuzz $(FUZZ)

ready: $(VENV)/.installed-dev # lint with one core, while the other one compiles
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target lint $(VENV)/.compiled

lint: $(VENV)/.installed-dev ## ruff, mypy and the import contract
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev ## format the sources and fix what ruff can fix
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

docs: $(VENV)/.installed-dev ## write the tables of docs/ that come from the code, and the site into site/
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/walks.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

pictures: $(VENV)/.installed-dev ## take the README's pictures of the pages from a run of the demo, by headless Chromium
	PYTHONPATH=tests:tests/browser $(BIN)/python docs/screenshots.py

bench: $(VENV)/.compiled ## measure the training step on this machine
	$(BIN)/python benchmarks/step.py

soak: $(VENV)/.compiled ## ever new ids at fixed limits, for MINUTES=10: what grows of a trainer and of a server?
	$(BIN)/python benchmarks/soak.py --minutes $(or $(MINUTES),10)

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
	@printf '%s\n' $(if $(GPU),,$(GPU_ONLY)) > $(VENV)/excluded.txt
ifdef TORCH_INDEX
	$(UV) --no-deps --default-index "$(TORCH_INDEX)" "$$(grep '^torch==' constraints.txt)"
else ifndef GPU
	@echo "There is no NVIDIA GPU here. If the package registry has no CPU build of torch, its CUDA build is installed, with 3 GB of"
	@echo "libraries that it does not start without. \`make clean setup TORCH_INDEX=URL\` takes torch from another index: PyTorch's"
	@echo "installation page names one with CPU builds."
endif
	$(INSTALL) --editable '.[serve]'
	@echo "Installed into $(VENV): $$(du -sh $(VENV) | cut -f1)"
	@touch $@

$(VENV)/.compiled: $(VENV)/.installed
	@echo "Compiling kernels, once, by a first small run:"
	$(BIN)/streamer demo --events 30000 --rate 100000 --seconds 900 --no-serve --no-open --data-dir $(VENV)/first-run > $(VENV)/first-run.log
	@rm -rf $(VENV)/first-run
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(INSTALL) --editable '.[dev]'
	@touch $@
