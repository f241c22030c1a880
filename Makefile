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

.PHONY: help setup s3-server demo test test-fast check format up down docs bench-overhead bench-savepoint clean

help: ## Say what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

setup: .venv/.ready ## Install everything the other targets need

.tools/bin/uv:
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 is needed: install it, or say PYTHON=path/to/python3.11" >&2; exit 1; }
	@echo "setup: uv $(UV_VERSION)"
	@$(PYTHON) -m venv .tools
	@.tools/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

.venv/.ready: pyproject.toml uv.lock streamwarden/spark/jars.toml | .tools/bin/uv
	@echo "setup: Python packages (180 of them; a minute or two the first time)"
	@$(UV) sync --locked --python $(PYTHON)
	@echo "setup: JVM jars"
	@$(BIN)/python -m streamwarden.spark.jars
	@touch $@

s3-server: | .tools/bin/uv ## Build the S3 server that the tests need, unless S3_ENDPOINT names one
	@.tools/bin/python scripts/build_s3_server.py

demo: setup ## The main job from end to end, headless (TRIPS=file.parquet, KEEP=1)
	@$(BIN)/python -m streamwarden.demo $(if $(TRIPS),--trips "$(TRIPS)") $(if $(KEEP),--keep)

up: setup ## Airflow with its UI on loopback, until `make down`
	@$(BIN)/python -m streamwarden.airflow up

down: setup ## Stop what `make up` started, jobs included
	@$(BIN)/python -m streamwarden.airflow down

test: setup s3-server ## All tests (TRIPS=file.parquet: with the real trips of its folder)
	@$(BIN)/pytest

test-fast: setup ## The tests that take under half a minute each, without JVM, Airflow or S3
	@$(BIN)/pytest -m "not slow and not integration and not airflow and not spark and not s3"

check: setup ## ruff, mypy, import rules, repository rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/pytest tests/unit/repository

format: setup ## Bring the code into shape
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: setup ## Write the generated pages of docs/ again
	@$(BIN)/python scripts/make_docs.py

bench-overhead: setup ## Our driver against a bare PySpark script
	@$(BIN)/python benchmarks/overhead.py

bench-savepoint: setup ## Savepoints against cp, sha256sum and reprocessing
	@$(BIN)/python benchmarks/savepoint.py

clean: ## Remove everything that a set-up or a run made
	rm -rf .venv .tools .jars var .pytest_cache .mypy_cache .ruff_cache .hypothesis
