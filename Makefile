# Two commands: `make run` and `make test`. Both set up what they need on first use; `make help` lists the rest.
BIN := .venv/bin
# Twice as many as the two cores of a small machine: many tests wait for processes.
JOBS ?= 4
export PYTHON

.DEFAULT_GOAL := help
.PHONY: help run gui test setup check docs bench learning benchgui screenshots film faults load soak audit wheels stubs constraints clean

help:  ## List the targets
	@sed -n 's/^\([a-z]*\):.*  ## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name text; do printf '  make %-12s %s\n' "$$name" "$$text"; done

run:  ## Install what the demo needs, train and evaluate an agent, record a video, and open the workbench if there is a display
	@scripts/setup.sh run
	@$(BIN)/mosaic demo

gui:  ## Install what the workbench needs, then open it
	@scripts/setup.sh run
	@$(BIN)/mosaic gui $(ARGS)

test: check  ## Install everything, then run all checks and all tests, four at a time (JOBS=8 for more)
	$(BIN)/pytest -n $(JOBS) --dist worksteal

setup:  ## Create .venv with the mosaic command and everything that the tests need
	@scripts/setup.sh test

check: setup  ## The checks without the tests: style, types, layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

faults: setup  ## Kill processes, truncate files, fill disks: one line per fault: make faults [ARGS="--rows F1,F9 --tries 20 --seed 7"]
	$(BIN)/python -m pytest -p tests.helpers.fault_table -n $(JOBS) --dist worksteal $(ARGS)

load: setup  ## How fast the daemon answers with 10,000 runs, 500 watchers, 1M journal lines: make load [ARGS="--only queued"]
	$(BIN)/python -m tests.bench.load $(ARGS)

soak: setup  ## Use a daemon at random for 30 minutes and judge whether anything of it grows: make soak [ARGS="--minutes 5 --seed 7"]
	$(BIN)/python -m tests.bench.soak $(ARGS)

audit: setup  ## Ask PyPI whether a pinned dependency has a known vulnerability
	scripts/audit.sh

wheels: setup  ## Install the wheel into empty environments, with each extra and each Python 3.11 to 3.13: make wheels [ARGS="--extras minimal,train"]
	@venv=.venv; . scripts/uv_settings.sh; pass_pip_settings_to_uv; $(BIN)/python scripts/wheels.py $(ARGS)

bench: setup  ## Speed against CleanRL: make bench CLEANRL=/path/to/cleanrl [CLEANRL_PYTHON=/path/to/python] [ARGS=…]
	$(BIN)/python -m tests.bench.speed --cleanrl "$(CLEANRL)" $(if $(CLEANRL_PYTHON),--python "$(CLEANRL_PYTHON)") $(ARGS)

learning: setup  ## Train what is missing in the learning table: make learning [CLEANRL=/path/to/cleanrl] [CLEANRL_PYTHON=…] [ARGS=…]
	$(BIN)/python -m tests.learning $(if $(CLEANRL),--cleanrl "$(CLEANRL)") $(if $(CLEANRL_PYTHON),--python "$(CLEANRL_PYTHON)") $(ARGS)

benchgui: setup  ## How long the window blocks, how fast it starts, whether its memory grows: make benchgui [ARGS="--minutes 10"]
	$(BIN)/python tests/bench/gui_responsiveness.py $(ARGS)

screenshots: setup  ## Save images of every page, tab and dialog of the workbench, with real runs, to build/screenshots
	$(if $(shell command -v xvfb-run),xvfb-run -a -s "-screen 0 1920x1080x24") $(BIN)/python scripts/screenshots.py $(ARGS)

docs: setup  ## Build the documentation site into build/site; broken links are errors: make docs [ARGS=serve]
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs $(or $(ARGS),build) --strict

film: setup  ## Film a tour of the window for the README, as docs/images/tour.gif
	$(if $(shell command -v xvfb-run),xvfb-run -a -s "-screen 0 1920x1080x24") $(BIN)/python scripts/tour_film.py $(ARGS)

stubs: setup  ## Generate the protobuf stubs and the C library again, after trainer.proto or classic_control.c has changed
	$(BIN)/python scripts/generate.py

constraints: setup  ## Resolve all extras to their newest versions into constraints.txt
	scripts/constraints.sh

clean:  ## Remove .venv and all caches, but no workspaces (var/)
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
