# What a person runs is what CI runs. Everything needs only Python >= 3.11, pip and make.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help setup demo test test-browser lint clean bench-data bench-objectives bench-optimizers bench-train bench-memory bench-law bench-field torture

help: ## show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | sort

setup: .venv/ready ## create .venv with everything that is needed

.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("budgetrec needs Python 3.11 or newer, found " + sys.version.split()[0] + ". Run: make PYTHON=python3.11 setup")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: .venv/ready ## the main job on 20,000 generated items within 128 MiB: prepare, plan, train, evaluate, report, recommend
	$(BIN)/budgetrec data demo --output build/demo/raw --overwrite --users 4000 --items 20000
	$(BIN)/budgetrec fit build/demo/raw/events.parquet --memory 128MiB --output build/demo/run --overwrite --dim 32 \
		--max-length 50 --dropout 0.1 --learning-rate 0.01 --epochs 12 --threads 1
	$(BIN)/budgetrec recommend build/demo/run --users user-0,user-1 --top 3

lint: .venv/ready ## style, types, and which module may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo

test: lint ## everything CI checks
	OMP_NUM_THREADS=1 $(BIN)/pytest -q --numprocesses 2

test-browser: ## the pages of reports in headless Chromium; screenshots go to build/browser
	@for tool in chromium chromedriver; do command -v $$tool >/dev/null || { \
		echo "make test-browser needs $$tool; on Debian: apt-get install chromium chromium-driver" >&2; exit 1; }; done
	@$(MAKE) --no-print-directory .venv/browser-ready
	OMP_NUM_THREADS=1 $(BIN)/pytest -q tests/browser

.venv/browser-ready: .venv/ready
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[browser]'
	@touch $@

.venv/bench-ready: .venv/ready
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	@touch $@

bench-data: .venv/bench-ready ## prepare and iterate 20 million rows against pandas and a DataLoader
	$(BIN)/python benchmarks/data.py --record benchmarks/results/data.md

bench-objectives: .venv/ready ## seconds and peak memory of every objective, about ten minutes
	$(BIN)/python benchmarks/objectives.py

bench-optimizers: .venv/ready ## row-sparse and dense updates of the item table, about two minutes
	$(BIN)/python benchmarks/optimizers.py

bench-memory: .venv/ready ## predicted and measured memory of 20 settings, and of planned runs, about 15 minutes
	$(BIN)/python benchmarks/memory.py --record benchmarks/results/memory.md

bench-law: .venv/ready ## the noise law against an independent simulation, about ten minutes
	$(BIN)/python benchmarks/law.py --record benchmarks/results/law.md

# Prepared datasets as NAME=FOLDER, and options of single ones; the second dataset is anything with short sequences.
FIELD_DATA ?= MovieLens-1M=build/data/ml-1m Diginetica=build/data/diginetica
FIELD_OPTIONS ?= --max-length Diginetica=50
FIELD_OUTPUT ?= build/bench-field

bench-field: .venv/ready ## the plan against other allocations on two datasets, five runs of two minutes each
	$(BIN)/python benchmarks/field.py run $(addprefix --data ,$(FIELD_DATA)) --memory 512MiB --seconds 120 \
		--output $(FIELD_OUTPUT) $(FIELD_OPTIONS)
	$(BIN)/python benchmarks/field.py summarise $(FIELD_OUTPUT) -o experiments/planner

# The peers cannot share our environment: their pins of numpy, pandas and polars exclude ours.
PEER_PIP = .venv-$(1)/bin/pip install --quiet --disable-pip-version-check --constraint benchmarks/peers/$(1).txt

.venv-rectools/ready: benchmarks/peers/rectools.txt
	$(PYTHON) -m venv .venv-rectools
	$(call PEER_PIP,rectools) torch
	$(call PEER_PIP,rectools) 'rectools[torch]' pyarrow
	@touch $@

.venv-replay/ready: benchmarks/peers/replay.txt
	$(PYTHON) -m venv .venv-replay
	$(call PEER_PIP,replay) torch
	$(call PEER_PIP,replay) 'replay-rec[torch]'
	@touch $@

bench-train: .venv/ready .venv-rectools/ready .venv-replay/ready ## epochs of SASRec against RecTools and RePlay
	$(BIN)/python benchmarks/train.py --record benchmarks/results/train.md

TORTURE_MINUTES ?= 90

.venv/torture-ready: .venv/ready
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[torture]'
	@touch $@

torture: .venv/torture-ready ## kills, mutated inputs, full disks, little memory; goes on where it was interrupted
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.torture --minutes $(TORTURE_MINUTES) --record benchmarks/results/torture.md

clean: ## remove what the other commands made
	rm -rf .venv .venv-* .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
