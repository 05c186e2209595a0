# A new user runs `make demo` and `make test`. Both install into a virtual environment, .venv, with
# the versions of constraints.txt.

PYTHON ?= python3
VENV := .venv
FLOOR_VENV := .venv-floor
NEWEST_VENV := .venv-newest
# `make newest` takes their newest releases from the index. torch may be added.
NEWEST ?= accelerate|huggingface_hub|sentence-transformers|tokenizers|transformers
EXTRAS ?= dev,demo,convert,train
FLOOR_EXTRAS := dev,demo,convert,train
# For the tests of both tiers, the site and the notebooks.
ALL_EXTRAS := dev,demo,convert,train,ecosystem,ray,serve,docs,notebooks
# Of `make fuzz`: the number of trials and the first one, another each day.
TRIALS ?= 5000
ALL_TRIALS := 500
SEED ?= $(shell date +%Y%m%d)
# More words for pytest: make test ARGS="tests/test_pipelines.py -k mask"
ARGS ?=

# pyproject.toml has the options of all runs, such as two processes.
PYTEST := -m pytest
# The limit for a cell, 300 s otherwise, and for a whole notebook.
NBMAKE := --nbmake --nbmake-timeout=1500 --timeout=1500 --durations=0
notebooks: export OMP_NUM_THREADS := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Python compiles files when they are imported, few of those installed. The pip that comes with Python
# 3.11 takes a third longer than the newest.
PIP_INSTALL := python -m pip install --quiet --no-compile
# Otherwise each process compiles the package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-all quick hub isa fuzz bench gpu notebooks lessons docs affected lint format floor newest smoke upstream-tests clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.installed-demo ## set up and run `hf-bert demo` on real weights
	@$(VENV)/bin/hf-bert demo

test: $(VENV)/.installed ## set up and run the first tier of the tests: `python -m pytest`
	$(VENV)/bin/python $(PYTEST) $(ARGS)

# A release and each night run it. GROUP=1 to 4 runs a quarter of the tests.
test-all: $(VENV)/.installed-all upstream-tests ## both tiers with coverage, floor, isa, notebooks and docs
	HF_BERT_FUZZ_TRIALS=$(ALL_TRIALS) HF_BERT_FUZZ_SEED=$(SEED) $(VENV)/bin/python $(PYTEST) -m "" \
		--cov --cov-report=term $(if $(GROUP),--splits 4 --group $(GROUP)) $(ARGS)
	$(if $(GROUP),,$(MAKE) floor isa docs notebooks FLOOR= HF_BERT_NOTEBOOKS=small)

quick: $(VENV)/.installed ## run the first tier with one case of each test, for the edit loop
	$(VENV)/bin/python $(PYTEST) --cases 1 $(ARGS)

# The limit of a test leaves time for models of up to 1.8 GB.
hub: $(VENV)/.installed ## run the tests that need the Hugging Face hub (HF_TOKEN for the one that pushes)
	env -u HF_HUB_OFFLINE -u TRANSFORMERS_OFFLINE HF_HUB_DOWNLOAD_TIMEOUT=60 \
		$(VENV)/bin/python $(PYTEST) -n 0 -m hub --timeout=3600 $(ARGS)

isa: $(VENV)/.installed ## run the tests of kernels at every instruction set below this machine's own
	$(VENV)/bin/python tests/isa.py $(ARGS)

# The tests run a few of these; a failing trial names the line that runs it alone.
fuzz: $(VENV)/.installed ## compare random models and calls with transformers (TRIALS=5000 SEED=7)
	HF_BERT_FUZZ_TRIALS=$(TRIALS) HF_BERT_FUZZ_SEED=$(SEED) $(VENV)/bin/python $(PYTEST) -q tests/fuzz $(ARGS)

# The peers are large: only this target installs them, into the same environment.
bench: $(VENV)/.installed-bench ## measure the speed of this package and of other runtimes (ARGS="--quick")
	$(VENV)/bin/hf-bert benchmark $(ARGS)

# Uses the installed libraries and installs nothing. Exit status 1 if a part fails.
gpu: ## prove and measure the CUDA path in eight minutes (ARGS="--device cpu --small")
	PYTHONPATH=. $(or $(wildcard $(VENV)/bin/python),$(PYTHON)) -m benchmarks.gpu $(ARGS)

# From clean kernels, up to the first failing cell. In a full run, the notebook that measures speed
# runs alone with all processors. A kernel starts in notebooks/, hence the absolute path of the data.
ALONE := $(if $(filter small,$(HF_BERT_NOTEBOOKS)),,notebooks/09_speed.ipynb)
notebooks: export HF_BERT_DATA := $(if $(HF_BERT_DATA),$(abspath $(HF_BERT_DATA)))
notebooks: $(VENV)/.installed-notebooks ## run all notebooks, and store their outputs
	$(VENV)/bin/python $(PYTEST) --dist load --maxschedchunk 1 $(NBMAKE) --exitfirst \
		notebooks $(addprefix --ignore=,$(ALONE))
	$(if $(ALONE),env -u OMP_NUM_THREADS $(VENV)/bin/python $(PYTEST) -n 0 $(NBMAKE) $(ALONE))

lessons: $(VENV)/.installed-notebooks ## open the lessons in JupyterLab
	$(VENV)/bin/jupyter lab --notebook-dir notebooks $(ARGS)

# Neither the build nor the pages use the network.
docs: $(VENV)/.installed-docs ## build the documentation site into build/site, and check its links
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict -f docs/site/mkdocs.yml
	@test -f build/site/search/search_index.js || { echo "docs: pages from the disk have no search"; exit 1; }

affected: $(VENV)/.installed ## run the tests of the files that differ from main, and of their importers
	@files=$$($(VENV)/bin/python tests/affected.py) || exit; \
	test -n "$$files" || { echo "affected: nothing differs from main"; exit; }; \
	$(VENV)/bin/python $(PYTEST) -m "" $$files $(ARGS)

lint: $(VENV)/.installed ## ruff check, ruff format --check and mypy
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/mypy --explicit-package-bases --namespace-packages tests/conftest.py \
		$(shell git ls-files 'tests/*.py' | grep -v '/test_\|/conftest')
	MYPYPATH=notebooks $(VENV)/bin/mypy -p lessons

format: $(VENV)/.installed ## apply the corrections of ruff
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# One case of each test; `make floor FLOOR=` runs the whole first tier.
FLOOR ?= --cases 1
floor: $(FLOOR_VENV)/.installed ## run the tests with the oldest supported transformers
	$(FLOOR_VENV)/bin/python $(PYTEST) $(FLOOR) $(ARGS)

newest: $(NEWEST_VENV)/.installed ## run the tests with the newest transformers and its companions
	$(NEWEST_VENV)/bin/python -m pip list 2>/dev/null | grep -E '^($(NEWEST)) '
	$(NEWEST_VENV)/bin/python $(PYTEST) $(ARGS)

# In a clean environment with only the dependencies of setup.cfg.
smoke: ## build sdist and wheel, install the wheel alone and use it
	@rm -rf build dist .venv-smoke
	@$(PYTHON) -m venv .venv-smoke
	@.venv-smoke/bin/$(PIP_INSTALL) --upgrade pip 'setuptools>=77'
	@.venv-smoke/bin/python -c "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')" >/dev/null
	@.venv-smoke/bin/$(PIP_INSTALL) -c constraints.txt dist/*.whl
	@ls -l dist
	@cd /tmp && $(CURDIR)/.venv-smoke/bin/python -I $(CURDIR)/tests/smoke.py

# Without a network this warns, and the tests that need the folder are skipped. In CI it fails.
upstream-tests: $(VENV)/.installed ## fetch the test-suites of the installed transformers and sentence-transformers
	@$(VENV)/bin/python tests/upstream/download.py || { echo "upstream-tests: not fetched; the tests that need them will skip"; test -z "$(CI)"; }

clean: ## remove the environments, build results and caches
	rm -rf $(VENV) $(FLOOR_VENV) $(NEWEST_VENV) .venv-smoke build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One recipe for all environments. The stamp is written last, so a broken installation is repeated.
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "make: '$(PYTHON)' is not a Python of 3.11 or newer; name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@test -x $(@D)/bin/pip || { $(PYTHON) -m venv $(@D) && $(@D)/bin/$(PIP_INSTALL) --upgrade pip; }
	@echo "make: installing into $(@D) under $(2) (a few minutes the first time)"
	@$(@D)/bin/$(PIP_INSTALL) -c $(2) -e '.[$(1)]'
	@echo $(1) >$@
endef
# The stamp names the installed extras.
define install_more
	@grep -qw $(1) $< || { echo "make: installing $(1) into $(VENV)"; $(VENV)/bin/$(PIP_INSTALL) -c constraints.txt -e '.[$(1)]'; }
	@touch $@
endef

$(VENV)/.installed: setup.cfg constraints.txt
	$(call install,$(EXTRAS),constraints.txt)

# What the demo needs and no more, unless the tests' libraries are there already.
$(VENV)/.installed-demo: setup.cfg constraints.txt
	$(if $(wildcard $(VENV)/.installed),@touch $@,$(call install,demo,constraints.txt))

$(VENV)/.installed-all: $(VENV)/.installed
	@test "$$(cat $<)" = $(ALL_EXTRAS) || { echo "make: installing all extras into $(VENV)"; $(VENV)/bin/$(PIP_INSTALL) -c constraints.txt -e '.[$(ALL_EXTRAS)]'; }
	@touch $@

$(VENV)/.installed-bench: $(VENV)/.installed
	$(call install_more,bench)

$(VENV)/.installed-notebooks: $(VENV)/.installed
	$(call install_more,notebooks)

$(VENV)/.installed-docs: $(VENV)/.installed
	$(call install_more,docs)

$(FLOOR_VENV)/.installed: setup.cfg constraints-floor.txt
	$(call install,$(FLOOR_EXTRAS),constraints-floor.txt)

# After a new release, remove the folder first (`make clean`).
$(NEWEST_VENV)/.installed: setup.cfg constraints.txt
	@mkdir -p build
	@grep -vE '^($(NEWEST))==' constraints.txt >build/constraints-newest.txt
	$(call install,$(EXTRAS),build/constraints-newest.txt)
