# Two commands matter: `make demo` shows the system at work, `make test` tests it. Each sets up all that it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FAULTS := tests/simulation tests/weakenings tests/property tests/fuzz tests/full_disk tests/endurance tests/platform
ON_SPARK := tests/spark
# Tests marked `real`: in these files, or by a fixture of these folders. To import all others takes longer than this search.
REAL = $(shell grep -rl 'mark\.real' tests --include='test_*.py' --include=conftest.py --exclude-dir=conformance --exclude-dir=debezium --exclude-dir=engines --exclude-dir=pubsub \
	| sed 's,/conftest\.py$$,,' | sort)
STAMP := $(VENV)/.installed
PIN := uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-emit-package tideline-hudi
PYTEST := $(BIN)/python -m pytest --durations 15 --durations-min 10

.PHONY: help screenshots setup java demo test test-changed test-faults test-spark test-real test-hive test-debezium test-engines test-pubsub test-cluster conformance simulate histories flips fuzz walk walk-both beside fleet bench bench-clustering bench-console bench-events bench-fleet bench-steady bench-index lint format docs wheel release \
	requirements images cluster-up cluster-status cluster-down e2e e2e-build e2e-short clean

BASE ?= main
SUITES ?= test faults spark
SEEDS ?= 5000
SEED_START ?= 0
SCALE ?= 0.2
PLANS ?= 200
FLEETS ?= 100 1000
EVENT_TABLES ?= 10000
CONSOLE_TABLES ?= 10000
TARGETS ?=
RELEASE ?= 1.2.0
SEED ?= 1
TABLES ?= 20
HUDI_TABLES ?= 20
POLLING ?= on
IDLE ?= 100
STEADY_TABLES ?= 20000
STEADY_MINUTES ?= 10
JOBS ?= 3
IMAGES ?=

# A process whose modules are compiled anew takes 2.8 s to start instead of 1.9 s, and the tests start hundreds.
unexport PYTHONDONTWRITEBYTECODE

help: ## say what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(STAMP): requirements/dev.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Tideline needs Python 3.11 or newer; set PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

setup: $(STAMP) ## the virtual environment, from the pinned requirements

java: $(STAMP) ## find Java 17 or newer, or install it
	$(BIN)/python scripts/install_java.py

demo: java ## real tables, many writers, all services, a verified result
	$(BIN)/python -m examples.demo $(FOLDER)

# Long sweeps take every eighth of their steps, and covering combinations instead of all; nightly SAMPLE_STEP=1.
test test-changed: export SAMPLE_STEP ?= 8

test: java ## the tests on embedded adapters, three at a time; all steps and combinations of long sweeps: SAMPLE_STEP=1
	$(PYTEST) tests --ignore=tests/conformance $(foreach f,$(FAULTS) $(ON_SPARK),--ignore=$(f)) -m "not real and not cluster" \
		-n $(JOBS) --dist loadfile --no-loadscope-reorder

test-changed: java ## those tests that what differs from BASE can reach, by imports: make test-changed BASE=main SUITES="test faults spark"
	files=$$($(BIN)/python scripts/changed_tests.py $(BASE) $(SUITES)) || exit 1; test -z "$$files" || \
		$(PYTEST) $$files -m "not real and not cluster" -n $(JOBS) --dist loadfile --no-loadscope-reorder || test $$? -eq 5

test-faults: java ## generated inputs and histories, crash points, seeded bugs, hostile bytes, full disks, kills; at every call: SAMPLE_STEP=1
	$(PYTEST) $(FAULTS) -m "not real and not cluster" -n $(JOBS) --dist loadfile --no-loadscope-reorder

test-spark: java ## DataFrames, data source, sink and applications on a local Spark
	$(PYTEST) $(ON_SPARK) -m "not real and not cluster"

test-real: java ## the contract suites on a real Kafka with a schema registry, a real Redis, real object stores; the chart with helm
	$(BIN)/python -m tests.real.object_store
	$(BIN)/python -m tests.chart.tools
	$(PYTEST) $(REAL) -m real -n $(JOBS) --dist loadfile --no-loadscope-reorder

test-hive: java ## the suite of catalogs on metastores of Hive 3.1.3 and 4.0.1 (215 MB of pinned jars the first time); not in .ci/run
	HIVE_RELEASE=3.1.3 $(PYTEST) tests/contract/catalogs -m real
	HIVE_RELEASE=4.0.1 $(PYTEST) tests/contract/catalogs -m real

test-debezium: java ## a running Debezium: a PostgreSQL, Kafka Connect and tideline-ingest keep a table equal to the database; not in .ci/run
	$(PYTEST) tests/debezium -m real

test-engines: java ## Presto and Trino read synced tables by name, from a real Hive metastore (3 GB of pinned archives the first time); not in .ci/run
	$(PYTEST) tests/engines -m real

test-pubsub: java ## notifications through Google's emulator of Pub/Sub (google-cloud-cli-pubsub-emulator, which no registry of packages has); not in .ci/run
	$(PYTEST) tests/pubsub -m real

test-cluster: java ## the launcher, HudiTable resources and the chart on a real API server of Kubernetes, built from source the first time
	$(BIN)/python -m tests.real.kubernetes_api
	$(BIN)/python -m tests.chart.tools
	$(PYTEST) tests/chart tests/contract -m cluster

# An object store that takes minutes to build is built beside the first tests, which need none.
conformance: java ## against Apache Hudi 1.2.0 on Spark, 1.2.1 by its Java client, and hudi-rs; all combinations, not only pairs: SAMPLE_STEP=1
	$(BIN)/python -m tests.conformance.peers.environment
	$(BIN)/python -m tests.real.object_store & $(PYTEST) tests/conformance; result=$$?; wait $$! && exit $$result

simulate: $(STAMP) ## many simulated histories: make simulate SEEDS=50000 SEED_START=0
	$(BIN)/python -m tests.simulation.run --seeds $(SEEDS) --seed-start $(SEED_START)

histories: $(STAMP) ## random histories on tables of all types, and replicas fed by changes: make histories RUNS=5000 (OF=partial-records)
	$(BIN)/python -m tests.histories --runs $(or $(RUNS),5000) --of $(or $(OF),versions)

flips: $(STAMP) ## flipped bits in data files, none of which may give wrong rows: make flips RUNS=10000
	$(BIN)/python -m tests.fuzz.flips --runs $(or $(RUNS),10000)

fuzz: $(STAMP) ## many inputs for each parser, chosen by coverage: make fuzz RUNS=1000000 TARGETS="hfile plans"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/fuzz.txt
	$(BIN)/python -m tests.fuzz.run --guided --runs $(or $(RUNS),1000000) $(TARGETS)

walk: java ## tables of Apache Hudi drawn by seeds: make walk RELEASE=0.15.0 SEED=1 TABLES=50
	$(BIN)/python -m tests.walk --release $(RELEASE) --seed $(SEED) --tables $(TABLES)

walk-both: java ## tables that Apache Hudi 1.2.0 and Tideline write in turn, drawn by seeds: make walk-both SEED=1 TABLES=50
	$(BIN)/python -m tests.conformance.peers.environment
	$(BIN)/python -m tests.walk.both --seed $(SEED) --tables $(TABLES)

beside: java ## jobs of an Apache Hudi release beside all services: make beside RELEASE=0.15.0 MINUTES=60 JOBS=2 (WITHOUT_LOCK=1 VERSION=9)
	$(BIN)/python -m tests.beside --release $(or $(RELEASE),1.2.0) --minutes $(or $(MINUTES),10) --jobs $(or $(JOBS),2) --without-lock $(or $(WITHOUT_LOCK),0) --version $(or $(VERSION),6)

fleet: java ## tables of every kind and of Apache Hudi's jobs under two instances of each service, with policies, kills, outages: make fleet TABLES=200 HUDI_TABLES=20
	$(BIN)/python -m tests.real.object_store
	$(BIN)/python -m tests.conformance.peers.environment
	$(BIN)/python -m tests.fleet --tables $(TABLES) --hudi-tables $(HUDI_TABLES) --polling $(POLLING)

bench: java ## ratios against Apache Hudi and plain Spark: make bench SCALE=0.2
	$(BIN)/python -m tests.conformance.peers.environment
	$(BIN)/python -m tests.benchmarks --scale $(SCALE)

bench-fleet: java ## a mirror and a planner with many tables, and small plans per minute: make bench-fleet FLEETS="100 1000" IDLE="100 1000" PLANS=200
	$(BIN)/python -m tests.real.object_store
	$(BIN)/python -m tests.benchmarks.fleet --tables $(FLEETS) --idle-tables $(IDLE) --plans $(PLANS)

bench-steady: $(STAMP) ## a fleet that is written for minutes, served by resident workers: make bench-steady STEADY_TABLES=20000 STEADY_MINUTES=10
	$(BIN)/python -m tests.benchmarks.steady --tables $(STEADY_TABLES) --minutes $(STEADY_MINUTES)

bench-console: $(STAMP) ## pages of the console over many tables, and with many viewers: make bench-console CONSOLE_TABLES=10000
	$(BIN)/python -m tests.benchmarks.console --tables $(CONSOLE_TABLES)

bench-events: java ## events on a real Kafka: delays, topics published again, start of a mirror: make bench-events EVENT_TABLES=10000
	$(BIN)/python -m tests.real.object_store
	$(BIN)/python -m tests.benchmarks.events --tables $(EVENT_TABLES)

bench-clustering: java ## RFC-19's experiment beside Apache Hudi: make bench-clustering SCALE=0.2
	$(BIN)/python -m tests.conformance.peers.environment
	$(BIN)/python -m tests.benchmarks.clustering --scale $(SCALE)

bench-index: java ## upserts and look-ups by each index, joins by buckets, beside Apache Hudi with the same index: make bench-index SCALE=0.2
	$(BIN)/python -m tests.conformance.peers.environment
	$(BIN)/python -m tests.benchmarks.indexes --scale $(SCALE)
	$(BIN)/python -m tests.benchmarks.bucket_queries --scale $(SCALE)

# So that they find a service that is newer than the installation of the environment.
lint docs: export PYTHONPATH := $(shell printf '%s:' services/*/src)

lint: $(STAMP) ## style, types, layers, generated documentation and chart files, counts that only fall
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/generate_docs.py --check
	$(BIN)/python scripts/generate_chart.py --check
	$(BIN)/python scripts/check_ceilings.py

format: $(STAMP) ## bring the code into shape
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

screenshots: $(STAMP) ## the pictures of docs/console.md, from a fleet that is made and lives for a minute
	$(BIN)/python -m tests.contract.console.screenshots docs/console

docs: $(STAMP) ## write the generated pages (options, settings, metrics, events) and the generated files of the chart
	$(BIN)/python scripts/generate_docs.py
	$(BIN)/python scripts/generate_chart.py

wheel: $(STAMP) ## the wheel in dist/
	rm -rf dist
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .

images: $(STAMP) ## the service and Spark images, archives in the cache: make images IMAGES=service (root, Debian)
	$(BIN)/python -m e2e.images build $(IMAGES)

release: $(STAMP) ## wheel, chart, images, bills of materials and checksums in dist/, tried from these files alone (docs/images.md)
	$(BIN)/python -m e2e.release $(IMAGES)

cluster-up: $(STAMP) ## a Kubernetes cluster with one node on this machine (root, Debian, Go; e2e/README.md)
	$(BIN)/python -m e2e.cluster up

cluster-status: $(STAMP) ## what of the cluster runs
	$(BIN)/python -m e2e.cluster status

cluster-down: $(STAMP) ## stop all that cluster-up started
	$(BIN)/python -m e2e.cluster down

e2e: java ## a release on the cluster, from images to helm uninstall, with faults (root, Debian, Go; e2e/README.md)
	$(BIN)/python -m e2e.fleet

e2e-build: java ## what e2e-short needs: programs of Kubernetes from source, images; left out where no node can run
	$(BIN)/python -m e2e.fleet --short --build-only --if-possible

e2e-short: java ## the short form of it: one table, a driver with an executor, the driver killed; left out where no node can run
	$(BIN)/python -m e2e.fleet --short --if-possible --store seaweedfs

requirements: ## pin pyproject.toml and requirements/*.in anew, with hashes (needs uv)
	$(PIN) pyproject.toml --all-extras requirements/dev.in -o requirements/dev.txt
	$(PIN) -c requirements/dev.txt pyproject.toml --extra services --extra kafka --extra redis --extra zookeeper --extra kubernetes --extra aws --extra console --extra catalogs -o requirements/service.txt
	$(PIN) -c requirements/dev.txt pyproject.toml --extra spark --extra redis --extra zookeeper --extra aws -o requirements/spark.txt
	$(PIN) -c requirements/dev.txt requirements/image.in -o requirements/image.txt
	for f in peer-hudi fuzz; do $(PIN) requirements/$$f.in -o requirements/$$f.txt; done

clean: ## remove what the commands above made
	rm -rf $(VENV) dist .venv-peer .cache demo-tables .pytest_cache .mypy_cache .ruff_cache
