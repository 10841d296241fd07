# Two commands: `make run` and `make test`. Both set up what they need on first use; `make help` lists the rest.
BIN := .venv/bin
JOBS ?= 2
export PYTHON

.DEFAULT_GOAL := help
.PHONY: help run gui test setup check bench learning benchgui screenshots faults stubs constraints clean

help:  ## This list
	@sed -n 's/^\([a-z]*\):.*  ## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name says; do printf '  make %-12s %s\n' "$$name" "$$says"; done

run:  ## Set up what the demo needs, train, evaluate and film an agent, and open the workbench on it where there is a display
	@scripts/setup.sh run
	@$(BIN)/mosaic demo

gui:  ## Set up what the workbench needs, then open it
	@scripts/setup.sh run
	@$(BIN)/mosaic gui $(ARGS)

test: check  ## Set up everything, then run all checks and all tests, two at a time or as many as JOBS says
	$(BIN)/pytest -n $(JOBS) --dist worksteal

setup:  ## Make .venv with the mosaic command and all that the tests need
	@scripts/setup.sh test

check: setup  ## The checks without the tests: style, types, layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

faults: setup  ## What happens when things are killed, torn and filled up: one line a promise
	$(BIN)/pytest -v tests/faults

bench: setup  ## Speed against CleanRL: make bench CLEANRL=/path/to/cleanrl [CLEANRL_PYTHON=/path/to/python] [ARGS=…]
	$(BIN)/python -m tests.bench.speed --cleanrl "$(CLEANRL)" $(if $(CLEANRL_PYTHON),--python "$(CLEANRL_PYTHON)") $(ARGS)

learning: setup  ## Train what the learning table lacks: make learning [CLEANRL=/path/to/cleanrl] [CLEANRL_PYTHON=…] [ARGS=…]
	$(BIN)/python -m tests.learning $(if $(CLEANRL),--cleanrl "$(CLEANRL)") $(if $(CLEANRL_PYTHON),--python "$(CLEANRL_PYTHON)") $(ARGS)

benchgui: setup  ## How long the window stands still, how soon it is there, whether it grows: make benchgui [ARGS="--minutes 10"]
	$(BIN)/python tests/bench/gui_responsiveness.py $(ARGS)

screenshots: setup  ## Pictures of every page, tab and dialog of the workbench, with real runs, into build/screenshots
	$(if $(shell command -v xvfb-run),xvfb-run -a -s "-screen 0 1920x1080x24") $(BIN)/python scripts/screenshots.py $(ARGS)

stubs: setup  ## Generate the protobuf stubs again, after trainer.proto has changed
	$(BIN)/python scripts/stubs.py

constraints: setup  ## Resolve all extras to their newest versions into constraints.txt
	scripts/constraints.sh

clean:  ## Remove .venv and all caches; workspaces (var/) stay
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
