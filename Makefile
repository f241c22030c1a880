# Every target does the set-up that it needs; a set-up of which nothing has changed costs a moment.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3.11
UV_VERSION := 0.13.8
UV := .tools/bin/uv
BIN := .venv/bin
export UV_PYTHON_DOWNLOADS := never
ifdef TRIPS
export STREAMWARDEN_TEST_DATA := $(abspath $(dir $(TRIPS)))
endif

# The environments name their folder: in a copied or moved checkout they would run the code of the first one. A look at
# the targets removes nothing.
ifneq ($(filter-out help,$(MAKECMDGOALS)),)
$(shell [ ! -s .venv/.ready ] || [ "$$(cat .venv/.ready)" = "$$(pwd -P)" ] || rm -rf .venv .tools)
endif

.PHONY: audit fuzz help setup s3-server kafka-server demo chaos test test-ci test-fast test-long test-browser compose-engine compose-test check format up down docs docs-site test-launchers test-upgrade yarn-cluster kubernetes-server \
	bench-overhead bench-start bench-settings bench-savepoint bench-state bench-state-python bench-commits bench-peers bench-serving bench-quality bench-rescale bench-fleet bench-pages bench-scale bench-requests record-load bench-rescale-cluster \
	clean

help: ## Say what there is
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

setup: .venv/.ready ## Install everything the other targets need

.tools/bin/uv:
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 is needed: install it, or say PYTHON=path/to/python3.11" >&2; exit 1; }
	@echo "setup: uv $(UV_VERSION)"
	@$(PYTHON) -m venv .tools
	@.tools/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

.venv/.ready: pyproject.toml examples/nyc_taxi/pyproject.toml uv.lock streamwarden/spark/jars.toml streamwarden/spark/class_archive.py \
		streamwarden/spark/conditional_put.py $(wildcard streamwarden/spark/java/*.java) | .tools/bin/uv
	@echo "setup: Python packages (180 of them; a minute or two the first time)"
	@$(UV) sync --locked --all-extras --python $(PYTHON)
	@echo "setup: JVM jars"
	@$(BIN)/python -m streamwarden.spark.jars
	@$(BIN)/python -m streamwarden.spark.conditional_put
	@echo "setup: archives of Spark's classes (a minute or two, for quicker starts)"
	@$(BIN)/python -m streamwarden.spark.class_archive
	@pwd -P > $@

s3-server: | .tools/bin/uv ## Build the S3 server that the tests need, unless S3_ENDPOINT names one
	@.tools/bin/python scripts/build_s3_server.py

kafka-server: setup ## Fetch the Kafka server that the tests need
	@$(BIN)/python scripts/fetch_test_server.py kafka

yarn-cluster: setup ## Fetch the YARN that the tests need
	@$(BIN)/python scripts/fetch_test_server.py yarn

kubernetes-server: | .tools/bin/uv ## Build the Kubernetes that the tests need: API server, scheduler, controllers, etcd
	@.tools/bin/python scripts/build_kubernetes_server.py

demo: setup ## The main job from end to end, headless (TRIPS=file.parquet, KEEP=1, JOBS=card_velocity,trip_payments)
	@$(BIN)/python -m nyc_taxi.demo $(if $(JOBS),--jobs "$(JOBS)") $(if $(TRIPS),--trips "$(TRIPS)") $(if $(KEEP),--keep)

chaos: setup ## Faults into drivers and a real Airflow on Postgres (FAULTS=200 SEED=n ONLY=kind MINUTES=n TRIPS=file.parquet)
	@$(BIN)/python -m tests.chaos $(if $(FAULTS),--faults $(FAULTS)) $(if $(SEED),--seed $(SEED)) \
		$(if $(ONLY),--only $(ONLY)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(TRIPS),--trips "$(TRIPS)")

up: setup ## Airflow with its UI on loopback, until `make down`
	@$(BIN)/python -m streamwarden.devserver up

down: setup ## Stop what `make up` started, jobs included
	@$(BIN)/python -m streamwarden.devserver down

# Three at a time on two cores: much of the time a test waits for what it started. By file, so that a file's fixtures are made once, and
# in the order of folders: the quick ones of tests/unit fill the end, where a file of minutes would leave one core idle.
TESTS_AT_ONCE ?= 3

test: setup s3-server ## The tests, but for the long ones (TRIPS=file.parquet: with the real trips of its folder; TESTS_AT_ONCE=n)
	@$(BIN)/pytest -n $(TESTS_AT_ONCE) --dist loadfile --no-loadscope-reorder \
		--durations 25 --durations-min 20 -m "not long"

test-long: setup s3-server kafka-server ## Long random sequences, kills and load, one at a time (STREAMWARDEN_TEST_ACTIONS, _KILLS, _TAKES, _SEED)
	@$(BIN)/pytest -s -m long
	@if $(BIN)/python -c "from tests.compose.engine import find_engine; find_engine()" 2>/dev/null; \
	then $(MAKE) compose-test; else echo "compose-test is left out: no container engine"; fi

test-ci: setup s3-server kafka-server ## The long tests that CI runs, too: real drivers on disk, S3 and Kafka, and the longest of Spark
	@$(BIN)/pytest -n 2 -m ci

test-launchers: setup s3-server yarn-cluster kubernetes-server ## What every launcher promises, with real drivers and clusters (ONLY=local,host,standalone,yarn,kubernetes)
	@STREAMWARDEN_TEST_LAUNCHERS="$(ONLY)" $(BIN)/pytest -m launchers tests/launchers

test-upgrade: setup ## An earlier Streamwarden, and Spark's minor version before ours, with jobs from one to the other and back
	@$(BIN)/python scripts/make_old_spark.py
	@$(BIN)/pytest -m upgrade tests/upgrade

test-fast: setup ## The tests that take under half a minute each, without JVM, Airflow or S3
	@$(BIN)/pytest -m "not slow and not integration and not airflow and not spark and not s3 and not packaging"

test-browser: setup ## The pages in a real Airflow and browser, which apt-get install chromium brings (PICTURES=1: write docs/images)
	@$(UV) sync --quiet --locked --inexact --all-extras --group browser --python $(PYTHON)
	@$(if $(PICTURES),STREAMWARDEN_PICTURES=docs/images) $(BIN)/pytest -s tests/browser

compose-engine: setup ## Podman, Compose and base images for a Debian machine without Docker or registry; needs root
	@$(BIN)/python -m tests.compose.stand_in

compose-test: setup ## docker-compose.yml built and brought up, and the main job on it (FAULTS=n or names, SEED=n, MINUTES=n, PROFILE=compose_s3, KEEP=1)
	@$(BIN)/python -m tests.compose $(if $(FAULTS),--faults $(FAULTS)) $(if $(SEED),--seed $(SEED)) \
		$(if $(MINUTES),--minutes $(MINUTES)) $(if $(PROFILE),--profile $(PROFILE)) $(if $(KEEP),--keep)

check: setup ## ruff, mypy, import rules, repository rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/pytest tests/unit/repository

audit: setup ## Known vulnerabilities, licences and a bill of materials of what is locked (ADVISORIES=copy of pypa/advisory-database)
	@UV_PROJECT_ENVIRONMENT=.tools/audit $(UV) sync --quiet --locked --only-group audit --python $(PYTHON)
	@.tools/audit/bin/python scripts/audit.py $(if $(ADVISORIES),--advisories "$(ADVISORIES)")

# Beside .venv, whose packages it imports too: an environment of its own would be another 1.4 GB.
fuzz: setup ## Fuzz the readers of documents, logs, checkpoints, YAML, suites and clusters' answers (SECONDS=60 ONLY=offsets,suites SEED=n)
	@UV_PROJECT_ENVIRONMENT=.tools/fuzz $(UV) sync --quiet --locked --only-group fuzz --python $(PYTHON)
	@PYTHONPATH="$$(echo .tools/fuzz/lib/python*/site-packages)" $(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),60) \
		$(if $(ONLY),--only $(ONLY)) $(if $(SEED),--seed $(SEED))

format: setup ## Bring the code into shape
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: setup ## Write the generated pages of docs/ again
	@$(BIN)/python scripts/make_docs.py

docs-site: | .tools/bin/uv ## The documentation as a site, in var/site (an environment of its own; the first time some downloads)
	@UV_PROJECT_ENVIRONMENT=.tools/docs $(UV) sync --quiet --locked --only-group docs --python $(PYTHON)
	@NO_MKDOCS_2_WARNING=1 .tools/docs/bin/mkdocs build --strict
	@echo "docs-site: open var/site/index.html"

bench-start: setup ## What a start costs: with and without the archive of Spark's classes, and a warm spare
	@$(BIN)/python benchmarks/start.py; first=$$?; $(BIN)/python -m benchmarks.warm_start && exit $$first

bench-overhead: setup ## Our driver against a bare PySpark script
	@$(BIN)/python benchmarks/overhead.py

bench-settings: setup ## Small batches under our sessions' settings, beside Spark's and Delta's defaults
	@$(BIN)/python -m benchmarks.settings

bench-state-python: setup ## Keyed state for Python against plain transformWithState and session_window
	@$(BIN)/python -m benchmarks.state_python

bench-state: setup ## State in memory and in RocksDB, by the number of keys
	@$(BIN)/python -m benchmarks.state_backends

bench-commits: setup ## What a batch's commits cost, and an idle driver
	@$(BIN)/python -m benchmarks.commits

bench-peers: setup kafka-server ## Our driver against PyFlink and Quix Streams, each in an environment of its own
	@$(BIN)/python -m benchmarks.peers.run

bench-serving: setup ## Reads from SQLite and Redis beside a writer (needs redis-server)
	@$(BIN)/python -m benchmarks.serving

bench-quality: setup ## Decisions of the gate beside a check of the whole table by Spark (TRIPS=file.parquet)
	@$(BIN)/python -m benchmarks.quality $(if $(TRIPS),--trips $(TRIPS))

bench-savepoint: setup ## Savepoints against cp, sha256sum and reprocessing
	@$(BIN)/python -m benchmarks.savepoint

bench-rescale: setup ## A rescale's downtime, beside the bare one's and reprocessing
	@$(BIN)/python -m benchmarks.rescale

bench-rescale-cluster: setup ## The same on a Spark standalone cluster with free slots
	@$(BIN)/python -m benchmarks.rescale_cluster

bench-pages: setup ## Server time of the pages: a hundred jobs, a week and thirteen weeks of batches
	@$(BIN)/python -m benchmarks.pages

bench-fleet: setup ## What supervision costs Airflow, by the number of jobs
	@$(BIN)/python -m benchmarks.fleet

bench-scale: setup s3-server ## Requests and time of what is done for a job and a savepoint: 10, 100, 1,000 of them
	@$(BIN)/python -m benchmarks.scale

bench-requests: setup s3-server ## S3 requests of a real driver, for each batch and each idle minute, and their price
	@$(BIN)/python -m benchmarks.s3_requests

record-load: setup ## A job's batches under a load with steps and a spike, for the advisor's tests
	@$(BIN)/python -m benchmarks.record_load

clean: ## Remove everything that a set-up or a run made
	rm -rf .venv .tools .jars .peers var .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse
