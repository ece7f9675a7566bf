# `make demo` and `make test` are all a fresh clone needs: Python 3.11 or newer, make and a C++ compiler must be there,
# everything else is put into .venv. A step runs again only when the content it depends on has changed.
#
#   make demo          profile a real training run and look at the result
#   make test          every check and every test
#   make lint | native-test | docs | wheel-test | web-test | pytest     its parts
#   make wheels        what would be published, in dist/: a wheel for each of PYTHONS with the recorder for each torch of
#                      TORCHES inside, tried without a compiler, and its bill of materials
#   make web           build the viewer's page anew after a change in web/ (needs node and npm)
#   make stress        every test with many more repetitions, then fuzzing (hours; before a release)
#   make fuzz          look for texts that break the native reader, FUZZ_SECONDS long (needs clang with libFuzzer)
#   make matrix        the recorder's tests on other releases of torch and Python (needs uv and, for each release, 6 GB for a while)
#   make format        let ruff and clang-format rewrite the sources, and write docs/tables.md anew
#   make bench         the bars of the project, ours and torch.profiler side by side
#   make gpu-check     what only a device can show, with whatever Python has torch and kinetoscope; results in OUT=build/gpu-check
#   make clean         forget builds and caches (the virtual environment stays; remove .venv for that)
#
# PYTHON=python3.12 chooses another interpreter, PIP_FLAGS="..." is handed to every pip install (a mirror, a torch index).

PYTHON    ?= python3
PIP_FLAGS ?=
JOBS      ?= 2
FUZZ_SECONDS ?= 600
# 3.12 makes the wheel of all Pythons from there on; each further one adds recorders to it.
PYTHONS   ?= python3.11 python3.12 python3.13 python3.14
TORCHES   ?= 2.7 2.8 2.9 2.10 2.11 2.12 2.13 2.14 2.15

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# By another name, so that `make -n` only prints the line that calls it.
AGAIN := $(MAKE)
ifndef SIDE_BY_SIDE
.NOTPARALLEL:
endif
.DELETE_ON_ERROR:

BIN   := .venv/bin
STAMP := .venv/stamps
PIP   := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt $(PIP_FLAGS)

# A stamp's name is the checksum of what it stands for.
content = $(shell find $(1) -type f -not -path '*/__pycache__/*' | LC_ALL=C sort | xargs cksum | cksum | cut -d' ' -f1)
REQUIREMENTS := $(call content,pyproject.toml constraints.txt tools/print_requirements.py)
SOURCES      := $(call content,src native/core native/recorder cmake CMakeLists.txt pyproject.toml README.md LICENSE)
PACKAGES     := $(call content,web/package.json web/package-lock.json)
NATIVE       := $(shell find native -name '*.cpp' -o -name '*.c' -o -name '*.h')
# The environment of the caller must not choose other packages, nor reach the programs under test.
unexport PYTHONPATH PYTHONHOME PYTHONWARNINGS PYTHONUNBUFFERED PYTHONDONTWRITEBYTECODE MAKEFLAGS

say = @printf '\n==> %s\n' "$(1)"

.PHONY: help demo test lint native-test fuzz docs wheel-test wheels web web-test chromium pytest stress bench matrix gpu-check format install develop clean
help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile

# ------------------------------------------------------------------------------------------------------------ set-up
$(STAMP)/venv:
	@command -v $(PYTHON) > /dev/null || { \
	  echo "There is no '$(PYTHON)' here. Name a Python 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Kinetoscope needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." \
	       "Name another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import os, sys, sysconfig; \
	  sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' || { \
	  echo "The headers of '$(PYTHON)' are missing: install its development package" \
	       "(on Debian and Ubuntu: python3-dev)." >&2; exit 1; }
	@command -v $${CXX:-c++} > /dev/null || command -v g++ > /dev/null || command -v clang++ > /dev/null || { \
	  echo "There is no C++ compiler here: install g++ or clang++ (on Debian and Ubuntu: build-essential)." >&2; exit 1; }
	$(call say,Making the virtual environment .venv)
	@$(PYTHON) -m venv .venv || { echo "'$(PYTHON) -m venv' does not work here: install Python's venv package" \
	  "(on Debian and Ubuntu: python3-venv)." >&2; exit 1; }
	@mkdir -p $(STAMP) && touch $@

# torch goes first and by its pinned version, so that no later step can choose another build of it.
$(STAMP)/run-$(REQUIREMENTS): | $(STAMP)/venv
	$(call say,Installing torch and what the package needs (the first time this takes a minute or two))
	@$(PIP) "$$(grep '^torch==' constraints.txt)"
	@$(BIN)/python tools/print_requirements.py view > $(STAMP)/requirements.txt
	@$(PIP) -r $(STAMP)/requirements.txt
	@rm -f $(STAMP)/run-* && touch $@

# After the other installation, never beside it: both write into .venv. Most of these thousands of files are never imported,
# so Python compiles those that are.
$(STAMP)/dev-$(REQUIREMENTS): $(STAMP)/run-$(REQUIREMENTS) | $(STAMP)/install-$(SOURCES)
	$(call say,Installing what the checks and tests need)
	@$(BIN)/python tools/print_requirements.py dev > $(STAMP)/requirements.txt
	@$(PIP) --no-compile -r $(STAMP)/requirements.txt
	@# It asks for all of JupyterLab, of which the tests need nothing.
	@$(PIP) --no-deps "$$(grep '^HolisticTraceAnalysis==' constraints.txt)"
	@rm -f $(STAMP)/dev-* && touch $@

$(STAMP)/install-$(SOURCES): $(STAMP)/run-$(REQUIREMENTS)
	$(call say,Building and installing kinetoscope (core and recorder are compiled: under a minute))
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) --no-build-isolation --no-deps --force-reinstall .
	@rm -f $(STAMP)/install-* && touch $@

install: $(STAMP)/install-$(SOURCES)
develop: install $(STAMP)/dev-$(REQUIREMENTS)

# --------------------------------------------------------------------------------------------------------- two commands
demo: install
	$(call say,Profiling a training run)
	@$(BIN)/kinetoscope demo
	@printf '\nThe command stands in $(BIN): type %s first, or %s in its place.\n' \
	  '`. $(BIN)/activate`' '`$(BIN)/kinetoscope`'

# Installing and most checks take one processor, so compilers run beside them. The tests wait for processes now and then:
# the documentation and the wheel are made in these moments.
test: chromium $(STAMP)/run-$(REQUIREMENTS)
	@$(AGAIN) --no-print-directory -j2 SIDE_BY_SIDE=yes native-test lint
	@$(AGAIN) --no-print-directory -j2 SIDE_BY_SIDE=yes pytest docs wheel-test web-test

# ---------------------------------------------------------------------------------------------------------------- parts
lint: develop
	$(call say,ruff)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	$(call say,clang-format)
	@$(BIN)/clang-format --dry-run -Werror $(NATIVE)
	$(call say,mypy --strict)
	@$(BIN)/mypy
	$(call say,stubtest kinetoscope._core)
	@MYPYPATH=src $(BIN)/stubtest --mypy-config-file pyproject.toml kinetoscope._core
	$(call say,import rules)
	@$(BIN)/lint-imports --no-cache
	$(call say,docs/tables.md is up to date)
	@$(BIN)/python tools/generate_table_docs.py --check

# ThreadSanitizer cannot map its shadow on kernels that scatter addresses widely: setarch -R keeps them where it looks.
# Under a sanitizer several sources are compiled as one, which takes half as long; the plain build takes each by itself.
native-test: $(STAMP)/run-$(REQUIREMENTS)
	@for sanitizer in '' address thread; do \
	  build=build/native$${sanitizer:+-$$sanitizer}; \
	  unity=OFF; if [ -n "$$sanitizer" ]; then unity=ON; fi; \
	  printf '\n==> Native tests: %s\n' "$${sanitizer:-plain}"; \
	  $(BIN)/cmake -S . -B $$build -G Ninja -DCMAKE_MAKE_PROGRAM="$(CURDIR)/$(BIN)/ninja" \
	    -DKINETOSCOPE_NATIVE_TESTS=ON -DKINETOSCOPE_WARNINGS_ARE_ERRORS=ON \
	    -DKINETOSCOPE_SANITIZER=$$sanitizer -DCMAKE_UNITY_BUILD=$$unity -DCMAKE_UNITY_BUILD_BATCH_SIZE=6 > /dev/null; \
	  $(BIN)/cmake --build $$build; \
	  launch=; \
	  if [ "$$sanitizer" = thread ] && setarch -R true 2> /dev/null; then launch="setarch -R"; fi; \
	  $$launch $(BIN)/ctest --test-dir $$build -j $(JOBS) --output-on-failure --no-tests=error; \
	done

# What is found lies in build/fuzz/: texts that take new ways in found/, those that break something as crash-*.
fuzz: develop
	@command -v clang++ > /dev/null || { \
	  echo "Fuzzing needs clang++ with libFuzzer: install it (on Debian and Ubuntu: clang libclang-rt-dev)." \
	       "The same texts, mutated without guidance, run under make native-test." >&2; exit 1; }
	$(call say,Fuzzing the reader of Chrome traces for $(FUZZ_SECONDS) s)
	@CXX=clang++ $(BIN)/cmake -S . -B build/fuzz -G Ninja -DCMAKE_MAKE_PROGRAM="$(CURDIR)/$(BIN)/ninja" \
	  -DKINETOSCOPE_NATIVE_TESTS=ON -DKINETOSCOPE_LIBFUZZER=ON -DKINETOSCOPE_SANITIZER=address > /dev/null
	@$(BIN)/cmake --build build/fuzz --target fuzz_chrome_reader
	@mkdir -p build/fuzz/found
	@cd build/fuzz && ./fuzz_chrome_reader -max_len=3000 -timeout=20 -max_total_time=$(FUZZ_SECONDS) \
	  found ../../native/tests/corpus

docs: develop
	$(call say,Documentation)
	@$(BIN)/sphinx-build -W -q -b html -d build/docs-doctrees docs build/docs
	@echo "open build/docs/index.html"

web-test:
	$(call say,The page of the viewer)
	@if command -v npm > /dev/null; then $(AGAIN) --no-print-directory build/web-packages-$(PACKAGES) && tools/check_page.sh; \
	else echo "Skipped: there is no npm here. 'apt-get install npm' enables the checks of the page."; test -z "$${CI:-}"; fi

web: build/web-packages-$(PACKAGES)
	@cd web && npm run --silent build

build/web-packages-$(PACKAGES):
	$(call say,Installing what builds the viewer's page)
	@# Not `npm ci`: it wants every optional package of every platform in the lock, which not every registry has.
	@cd web && npm install --no-save --no-audit --no-fund --loglevel=error
	@mkdir -p build && rm -f build/web-packages-* && touch $@

# The tests of the pages need a browser. Where the system's packages may be installed it is; elsewhere they are skipped.
chromium:
	@for name in chromium chromium-browser google-chrome; do command -v $$name > /dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	  printf '\n==> Installing Chromium for the tests of the pages\n'; \
	  apt-get -q update > /dev/null && DEBIAN_FRONTEND=noninteractive apt-get -q install -y chromium > /dev/null; \
	else \
	  echo "There is no Chromium here: the tests of the pages are skipped. 'apt-get install chromium' enables them."; \
	fi

# What a user without torch gets: the wheel of an isolated build, in an environment of its own.
wheel-test: $(STAMP)/wheel-$(SOURCES)
$(STAMP)/wheel-$(SOURCES): develop
	$(call say,The wheel in an environment without torch)
	@$(BIN)/python tools/check_wheel.py
	@rm -f $(STAMP)/wheel-* && touch $@

wheels: develop
	$(call say,Wheels)
	@$(BIN)/python tools/build_wheels.py --torch $(TORCHES) --python $(PYTHONS)

pytest: develop
	$(call say,Tests)
	@# Tests of one file stay together as long as both have work: what a file sets up is set up once.
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

# Hours, not minutes: property tests search 40 times longer, soaks and kills repeat as often as before a release.
stress: develop
	$(call say,Tests that search and repeat longer)
	@KINETOSCOPE_STRESS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -o timeout=3600
	@$(AGAIN) --no-print-directory fuzz

bench: develop
	$(call say,Bars)
	@$(BIN)/python -m benchmarks

matrix: develop
	$(call say,Other releases of torch and Python)
	@$(BIN)/python tools/run_matrix.py $(PAIRS)

# Installs nothing, so that it runs where there is no network: .venv's Python if there is one, else PYTHON.
OUT ?= build/gpu-check
DEVICE ?=
gpu-check:
	@PYTHONPATH="$(PYTHONPATH)" $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m tests.gpu $(OUT) $(if $(DEVICE),--device $(DEVICE))

format: develop
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .
	@$(BIN)/clang-format -i $(NATIVE)
	@$(BIN)/python tools/generate_table_docs.py
	@if [ -d web/node_modules ]; then cd web && npm run --silent format; fi

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
