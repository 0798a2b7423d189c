# Every target makes its own environment in .venv; ARGS is passed on (make demo ARGS=--exit, make test ARGS="-k cli").
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
# Benchmarks that also run other people's engines have an environment of their own; the product does not depend on them.
BENCH := .venv-bench
BENCH_PACKAGES := trl liger-kernel

.PHONY: demo up test lint migrate screenshots bench-quality bench-parity bench-load chaos clean
.DEFAULT_GOAL := demo
.DELETE_ON_ERROR:

demo: $(VENV)/.run
	$(BIN)/stillhouse demo $(ARGS)

up: $(VENV)/.run
	$(BIN)/stillhouse up $(ARGS)

migrate: $(VENV)/.run
	$(BIN)/stillhouse migrate $(ARGS)

# Whole files side by side, a process per core (eight at most: each has a Redis database), one torch thread each.
test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Of the service that is up and its newest finished job; `make demo` makes both and leaves the service up.
screenshots: $(VENV)/.dev
	$(BIN)/python -m ui.screenshots docs/images $(ARGS)

SCALE ?= tiny
bench-quality: $(VENV)/.quality
	$(BIN)/python -W ignore -m benchmarks.quality --scale $(SCALE) $(ARGS)

bench-parity: $(BENCH)/.bench
	$(BENCH)/bin/python -W ignore -m benchmarks.parity $(ARGS)

bench-speed: $(BENCH)/.bench
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BENCH)/bin/python -W ignore -m benchmarks.speed $(ARGS)

bench-load: $(VENV)/.dev
	$(BIN)/python -W ignore -m benchmarks.load $(ARGS)

# Starts a PostgreSQL and a Redis of its own. Another seed every time, unless ARGS="--seed 7" says which.
chaos: $(VENV)/.dev
	$(BIN)/python -m benchmarks.chaos $(ARGS)

clean:
	rm -rf $(VENV) $(BENCH)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Stillhouse needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
	  || { echo "$(PYTHON) cannot make environments; on Debian: apt-get install python3-venv"; rm -rf $(VENV); exit 1; }
	$(BIN)/python -m pip install --quiet --upgrade pip

# The stamps: what is installed is what pyproject.toml and constraints.txt said at that time.
$(VENV)/.run: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install -c constraints.txt -e '.[api,ui,worker]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install -c constraints.txt -e '.[api,ui,worker,dev,bench]'
	@touch $@ $(VENV)/.run

$(VENV)/.quality: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install -c constraints.txt -e '.[worker,bench]'
	@touch $@

$(BENCH)/.bench: pyproject.toml constraints.txt benchmarks/constraints.txt
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install -c constraints.txt -c benchmarks/constraints.txt -e '.[worker]' $(BENCH_PACKAGES)
	@touch $@
