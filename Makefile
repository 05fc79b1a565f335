# Each target makes or reuses .venv and installs what it needs; Debian packages that are missing are named.
# Those for a GPU use PYTHON and what is installed there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
KILLS ?= 100
ATTACKS ?= 100
# A container engine, and options of its commands "build" and "run".
ENGINE ?= docker
BUILD_OPTIONS ?=
RUN_OPTIONS ?=
TOPIC ?= edges
# Programs that sanitizers look at, one after the other: minutes each.
PROGRAMS ?= bfs sssp counts components pagerank ppr pprs triangles lcc cdlp
SANITIZE = PYTHONPATH=$(CURDIR)/.links compute-sanitizer --error-exitcode 1
# Files of tests run side by side, in the order of their names (longest last would leave cores idle); each process has
# a broker of its own. One more than there are cores: daemons are waited for.
WORKERS ?= $(shell nproc | awk '{ print ($$1 < 4 ? $$1 + 1 : 4) }')
SIDE_BY_SIDE ?= -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Every kernel that is not in the cache: before tests, which would wait for each other's. Where that fails they tell why.
COMPILE = $(BIN)/python -P -m graphtide.daemon.kernels --all
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Hundreds of daemons are started: where no bytecode is kept, each of them would compile all modules anew, twice.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help wheel client-wheel demo test test-cases test-long test-gpu daemon-gpu sanitize-gpu image-test kill-test attack check bench bench-gpu kafka dashboards page debian warm clean clean-cache
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */  \1\t/' | expand -t 14

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo 'graphtide needs Python 3.11 or newer; name one, say: make $(MAKECMDGOALS) PYTHON=python3.12' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# All that a target needs at once, so that our own package is built once and not twice.
FOR_TESTS := .[test,bench,docs]
define INSTALL
	@echo 'installing $(1) and what it needs into $(VENV), once'
	@$(BIN)/pip install --quiet --editable '$(1)' \
	  || { echo 'pip could not install it, as it says above. Packages come from the network (pypi.org, or PIP_INDEX_URL).' >&2; exit 1; }
endef

$(BIN)/.core: pyproject.toml | $(BIN)/pip
	$(call INSTALL,.)
	@touch $@

$(BIN)/.demo: pyproject.toml | $(BIN)/pip
	$(call INSTALL,.[demo])
	@touch $(BIN)/.core $@

$(BIN)/.test: pyproject.toml | $(BIN)/pip
	$(call INSTALL,$(FOR_TESTS))
	@touch $(BIN)/.core $(BIN)/.demo
	@mkdir -p .links && ln -sfn .. .links/graphtide
	@touch $@

demo: $(BIN)/.demo  ## stream a real graph through the real daemon, query it, check every answer
	$(BIN)/graphtide demo

debian:  ## install the Debian packages that the tests need (as root), or name them
	@sh ops/debian.sh

test: $(BIN)/.test debian  ## lint, types, unit, property, broker, kill and monitoring tests
	-@$(COMPILE)
	$(BIN)/pytest $(SIDE_BY_SIDE)

test-cases: $(BIN)/.test debian  ## every case of the tests of which `make test` draws some, each as short as there
	-@$(COMPILE)
	$(BIN)/pytest $(SIDE_BY_SIDE) --all-cases -m sample

test-long: $(BIN)/.test debian  ## the same, with every sampled test run whole
	-@$(COMPILE)
	$(BIN)/pytest $(SIDE_BY_SIDE) --run-long --kills 500 --attacks 100

test-gpu:  ## the tests that need a CUDA device, with PYTHON as it is: nothing is installed
	@mkdir -p .links && ln -sfn .. .links/graphtide
	PYTHONPATH=$(CURDIR)/.links $(PYTHON) -m pytest -m gpu $(wildcard tests/test_device_*.py tests/test_owned_*.py) \
	  tests/test_following.py tests/test_functor.py tests/test_room_on_device.py tests/test_window_sides.py

daemon-gpu:  ## a daemon on a CUDA device beside one without, with PYTHON as it is: nothing is installed
	@mkdir -p .links && ln -sfn .. .links/graphtide
	PYTHONPATH=$(CURDIR)/.links $(PYTHON) -m pytest -m gpu tests/test_daemon_device.py

sanitize-gpu:  ## compute-sanitizer on short histories of the packed array and of PROGRAMS, with PYTHON as it is
	@mkdir -p .links && ln -sfn .. .links/graphtide
	for tool in memcheck racecheck; do \
	  $(SANITIZE) --tool $$tool $(PYTHON) benchmarks/storage_device_history.py || exit; \
	  for program in $(PROGRAMS); do \
	    $(SANITIZE) --tool $$tool $(PYTHON) benchmarks/device_history.py --only $$program || exit; \
	  done; \
	done

image-test: $(BIN)/.test  ## build the image with ENGINE (docker, podman), run a container of it, kill and stop it
	$(ENGINE) build $(BUILD_OPTIONS) --file ops/docker/Dockerfile --tag graphtide .
	GRAPHTIDE_ENGINE='$(ENGINE)' GRAPHTIDE_RUN_OPTIONS='$(RUN_OPTIONS)' $(BIN)/pytest tests/test_image.py

kill-test: $(BIN)/.test debian  ## kill the daemon KILLS times at seeded points
	$(BIN)/pytest -s tests/test_kill.py --kills $(KILLS)

attack: $(BIN)/.test debian  ## put a running daemon through ATTACKS attacks, comparing all answers with SciPy after each
	$(BIN)/pytest -s tests/test_attack.py --attacks $(ATTACKS)

check: $(BIN)/.test  ## ruff, mypy, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(BIN)/.test  ## load the whole daemon: updates per second and freshness together
	$(BIN)/python benchmarks/end_to_end.py

bench-gpu:  ## the packed array on a CUDA device, and a graph that has one, with PYTHON as it is: nothing is installed
	@mkdir -p .links && ln -sfn .. .links/graphtide
	PYTHONPATH=$(CURDIR)/.links $(PYTHON) benchmarks/storage_device.py
	PYTHONPATH=$(CURDIR)/.links $(PYTHON) benchmarks/sides.py
	PYTHONPATH=$(CURDIR)/.links $(PYTHON) benchmarks/device.py

wheel: $(BIN)/.test  ## build dist/graphtide-*.whl with compiled kernels, for this kind of machine, this Python and Numba
	sh ops/wheel.sh $(abspath $(BIN))/python dist

client-wheel: $(BIN)/.test  ## build dist/graphtide_client-*.whl: the clients alone
	rm -rf build/client && mkdir -p build dist && cp -RL ops/client build/client
	$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist build/client

kafka: $(BIN)/.core  ## a single-node Apache Kafka on loopback with a topic (TOPIC=edges), until interrupted
	$(BIN)/python -m graphtide.ops.kafka --topic $(TOPIC)

dashboards: $(BIN)/.test  ## write the Grafana dashboards anew from their Python source
	$(BIN)/python -m graphtide.ops.dashboards

page: $(BIN)/.test debian  ## draw docs/page.png anew: the page of the HTTP door over a real stream, in Chromium
	$(BIN)/python benchmarks/page.py

warm: $(BIN)/.core  ## compile every kernel into the cache, on all cores, before a first start (tests do so by themselves)
	@$(COMPILE)

clean-cache:  ## remove all kernels that graphtide has compiled and cached, for any copy of its source
	find gpma partition compute daemon -name '*.nb[ci]' -delete
	find "$$($(BIN)/python -c 'from graphtide.gpma import runtime; print(runtime.cache_directory())')" -name '*.nb[ci]' -delete

clean: clean-cache  ## remove the virtual environment and caches
	rm -rf $(VENV) .links .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
