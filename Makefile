# aten-overlay: `make help` lists the targets.

PYTHON ?= python3
export PYTHONPATH := $(CURDIR)/scripts:$(CURDIR)

# Make 4.3 does not export PYTHONPATH to $(shell). An older Python fails here, and `make doctor` says so.
DEFAULT_TORCH := $(shell PYTHONPATH=scripts $(PYTHON) -m overlay.versions 2>/dev/null)
TORCH ?= $(DEFAULT_TORCH)
VERSION ?= $(TORCH)
TREE ?= build/trees/$(VERSION)
OP ?= causal_conv1d
DEVICE ?= cpu

VENV := .venv$(if $(filter-out $(DEFAULT_TORCH),$(TORCH)),-$(TORCH))
VENV_PYTHON := $(VENV)/bin/python
OVERLAY := $(VENV_PYTHON) -m overlay
READY := $(VENV)/.ready
BUILT_BY = $(if $(CHROOT),--chroot "$(CHROOT)") $(if $(FOR),--python "$(FOR)")

.PHONY: help doctor demo wheel-mode bench fetch apply check status diff patch revert rebase build build-objects test-nn test-ops test-mps test-mps-sim mps-coverage package chroot chroot-shell chroot-remove test test-full test-gpu lint clean

help:
	@echo "make <target> [VARIABLE=value ...]"
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {print "\n" substr($$0, 5)} \
	     /^[a-z-]+:.*## / {printf "  %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "TORCH=$(TORCH) is the release in $(VENV), VERSION=$(VERSION) a fetched tree, TREE=$(TREE) any tree."

##@ With an installed torch (needs Python, make and a C++ compiler; makes .venv itself)
doctor: ## what this machine has, what is needed, how to mend it
	@$(PYTHON) -m overlay.doctor $(VENV)

demo: $(READY) ## build the operators, check and time them              [TORCH=]
	@$(VENV_PYTHON) scripts/demo.py

wheel-mode: $(READY) ## build them for `import torch_overlay`                 [TORCH=] [FOR=another python]
	@$(OVERLAY) wheel-mode --python "$(or $(FOR),$(VENV_PYTHON))"

bench: $(READY) ## compare an operator with its PyTorch equivalent      [OP=] [DEVICE=] [ARGS=]
	@$(VENV_PYTHON) benchmarks/$(OP).py --device $(DEVICE) $(ARGS)

##@ With a PyTorch tree
fetch: $(READY) ## bring a tree to build/trees/      VERSION= [SOURCE=wheel|debian|git] [PLATFORM=]
	@$(OVERLAY) fetch $(VERSION) $(if $(SOURCE),--source $(SOURCE)) $(if $(PLATFORM),--platform $(PLATFORM))

apply: ## put the overlay into it             [TREE=|VERSION=]
check: ## a dry run: what each edit would do  [TREE=|VERSION=|VERSION=newest]
status: ## what is applied                     [TREE=|VERSION=]
diff: ## what is applied, or would be, as a diff
patch: ## the same as one file that `git apply` takes
revert: ## take it out again, every byte
rebase: ## after an update of the tree: apply again, and say what moved
mps-coverage: ## what lacks a Metal kernel there, with and without the overlay
apply check status diff patch revert rebase mps-coverage: $(READY)
	@$(if $(filter newest,$(VERSION)),tree="$$($(OVERLAY) fetch newest)",tree="$(TREE)") && $(OVERLAY) $@ "$$tree"

##@ With a PyTorch source tree that the overlay is applied to; docs/source_mode.md has the switches
build: ## build torch in it; takes hours, goes on where it stopped      [TREE=|VERSION=] [MAX_JOBS=]
build-objects: ## configure, generate, compile the overlay's own sources: minutes
build build-objects: $(READY)
	@$(OVERLAY) $@ "$(TREE)" $(BUILT_BY)

test-nn: ## PyTorch's test_nn.py, against the unpatched result            [TREE=|VERSION=] [RECORD=1]
test-ops: ## its suites over all operators for ours, and our own tests     [TREE=|VERSION=] [FILES=]
test-mps: ## its test_mps.py, on a Mac                                     [TREE=|VERSION=]
test-nn test-ops test-mps: $(READY)
	@$(OVERLAY) $@ "$(TREE)" $(BUILT_BY) $(if $(RECORD),--record) $(if $(FILES),--files $(FILES))

# A tree only where one is named: TREE and VERSION have defaults.
package: $(READY) ## a wheel of its torch; without a tree, a wheel of wheel mode   [TREE=|VERSION=] [FOR=]
	@$(OVERLAY) $@ $(if $(filter-out file,$(origin TREE) $(origin VERSION)),"$(TREE)") $(BUILT_BY)

chroot: ## the Debian system a release builds in, where this is another  VERSION=2.6.0, as root
chroot-shell: ## a shell in it                                                 VERSION=2.6.0, as root
chroot-remove: ## remove it                                                     VERSION=2.6.0, as root
chroot chroot-shell chroot-remove: $(READY)
	@$(OVERLAY) $@ $(VERSION)

##@ For a change to this repository
test: wheel-mode ## tests of the tool and of the operators: 30 minutes at most   [PYTEST_ARGS=]
ifdef PYTEST_ARGS
	@$(VENV_PYTHON) -m pytest -p torch_overlay tests test_overlay/test $(PYTEST_ARGS)
else
	@echo "The tests run in two halves beside each other; each prints when it has ended"
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=line test-of-tool test-of-operators
endif

# Halves of `make test` that take about as long. MAKEFLAGS: the tests that run make have no part in this one's jobs.
.PHONY: test-of-tool test-of-operators
test-of-tool: wheel-mode
	@MAKEFLAGS= $(VENV_PYTHON) -m pytest -p torch_overlay tests/test_*.py

test-of-operators: wheel-mode
	@MAKEFLAGS= $(VENV_PYTHON) -m pytest -p torch_overlay tests/metal tests/mps tests/operators tests/gpu test_overlay/test
	@MAKEFLAGS= $(VENV_PYTHON) -m pytest -p metal_host.pytest_mps tests/simulated_mps

test-mps-sim: wheel-mode ## the operators on a simulated mps device, against the CPU          [PYTEST_ARGS=]
	@$(VENV_PYTHON) -m pytest -p metal_host.pytest_mps tests/simulated_mps $(PYTEST_ARGS)

test-full: ## gradients in full, outputs beyond 2^31, Metal under sanitizers, a torch built: hours, as root
	@PYTORCH_TEST_WITH_SLOW_GRADCHECK=1 PYTORCH_TEST_WITH_SLOW=1 METAL_TEST_FULL=1 $(MAKE) --no-print-directory test PYTEST_ARGS='-m "full or not full" $(PYTEST_ARGS)'
	@METAL_TEST_FULL=1 $(MAKE) --no-print-directory test-mps-sim PYTEST_ARGS='-m "full or not full" $(PYTEST_ARGS)'

test-gpu: wheel-mode ## tests that need an NVIDIA GPU, and those of all operators on it   [PYTEST_ARGS=]
	@PYTORCH_TESTING_DEVICE_ONLY_FOR=cuda $(VENV_PYTHON) -m pytest -p torch_overlay tests/gpu tests/operators/test_opinfo.py $(PYTEST_ARGS)

lint: $(READY) ## ruff over the Python, the patch files' own rules, Metal kernels type-checked
	@$(VENV_PYTHON) -m ruff check
	@$(OVERLAY) lint

clean: ## remove everything generated: build/ with its trees, dist/, and .venv*
	rm -rf build dist .venv .venv-*

# The stamp comes last, so an interrupted installation goes on where it stopped.
$(READY): scripts/requirements.txt tests/requirements.txt
	@$(PYTHON) -m overlay.doctor $(VENV) >/dev/null || { $(PYTHON) -m overlay.doctor $(VENV); exit 1; }
	@echo "Installing torch $(TORCH) and the tools into $(VENV): 1 to 10 minutes"
	@$(PYTHON) -m venv $(VENV)
	@$(VENV_PYTHON) -m pip install --disable-pip-version-check --no-compile "torch==$(TORCH)" $(^:%=-r %)
	@touch $@
