# Two commands matter: `make demo` shows the system at work, `make test` tests it. Each sets up all that it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MEMBERS := $(sort $(wildcard libs/*/pyproject.toml services/*/pyproject.toml))
STAMP := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest

.PHONY: help setup java demo test test-real conformance simulate fuzz walk bench lint format docs requirements clean

SEEDS ?= 5000
SEED_START ?= 0
SCALE ?= 0.2
RUNS ?= 1000000
TARGETS ?=
RELEASE ?= 1.2.0
SEED ?= 1
TABLES ?= 20
JOBS ?= 2

help: ## say what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(STAMP): requirements/dev.txt $(MEMBERS)
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Tideline needs Python 3.11 or newer; set PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation $(foreach m,$(MEMBERS),-e ./$(dir $(m)))
	touch $@

setup: $(STAMP) ## the virtual environment, from the pinned requirements

java: $(STAMP) ## find Java 17 or newer, or install it
	$(BIN)/python -m tideline_spark.java

demo: java ## real tables, many writers, all services, a verified result
	$(BIN)/tideline demo

test: java ## all tests on embedded adapters, two at a time: make test JOBS=4
	$(PYTEST) tests --ignore=tests/conformance -m "not real" -n $(JOBS) --dist loadfile --no-loadscope-reorder

test-real: java ## the contract suites on a real Kafka with a schema registry, a real Redis and real object stores
	$(BIN)/python -m tests.real.object_store
	$(PYTEST) tests --ignore=tests/conformance -m real

conformance: java ## against Apache Hudi 1.2.0 and hudi-rs
	$(BIN)/python -m tests.conformance.peers.environment
	$(PYTEST) tests/conformance

simulate: $(STAMP) ## many simulated histories: make simulate SEEDS=50000 SEED_START=0
	$(BIN)/python -m tests.simulation.run --seeds $(SEEDS) --seed-start $(SEED_START)

fuzz: $(STAMP) ## many inputs for each parser, chosen by coverage: make fuzz RUNS=1000000 TARGETS="hfile plans"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/fuzz.txt
	$(BIN)/python -m tests.fuzz.run --guided --runs $(RUNS) $(TARGETS)

walk: java ## tables of Apache Hudi drawn by seeds: make walk RELEASE=0.15.0 SEED=1 TABLES=50
	$(BIN)/python -m tests.walk --release $(RELEASE) --seed $(SEED) --tables $(TABLES)

bench: java ## ratios against Apache Hudi and plain Spark: make bench SCALE=0.2
	$(BIN)/python -m tests.conformance.peers.environment
	$(BIN)/python -m tests.benchmarks --scale $(SCALE)

lint: $(STAMP) ## style, types, layers, generated documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/generate_docs.py --check

format: $(STAMP) ## bring the code into shape
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(STAMP) ## write the generated pages: options, settings, metrics, events
	$(BIN)/python scripts/generate_docs.py

requirements: ## pin requirements/*.in anew, with hashes (needs uv)
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header requirements/dev.in -o requirements/dev.txt
	for f in service spark; do uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
		-c requirements/dev.txt requirements/$$f.in -o requirements/$$f.txt; done
	for f in peer-hudi fuzz; do uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
		requirements/$$f.in -o requirements/$$f.txt; done

clean: ## remove what the commands above made
	rm -rf $(VENV) .venv-peer .cache demo-tables .pytest_cache .mypy_cache .ruff_cache
