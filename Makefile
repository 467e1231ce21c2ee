# One command each sets up what it needs, once. TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu takes CPU wheels.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CXX ?= g++
TORCH_INDEX_URL ?=
export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport PYTHONDONTWRITEBYTECODE  # else every process compiles every module anew

.PHONY: setup demo serve test test-unit test-integration test-lab lint format bench gpu-check picture picture-share lock \
	clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@command -v $(CXX) >/dev/null 2>&1 || { echo "vitscale: no C++ compiler ($(CXX)) found: DeepSpeed compiles its CPU collective with one. Install g++ (Debian: apt-get install g++) or set CXX."; exit 2; }
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v < (3, 14) else f"vitscale: Python 3.11 to 3.13 is needed, {sys.executable} is {v[0]}.{v[1]}: set PYTHON=...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing VitScale and what it stands on (torch, Ray, DeepSpeed: several GB, some minutes, once) ..."
	@$(BIN)/pip install --quiet $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) -c constraints.txt torch torchvision
	@$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	@echo "Compiling DeepSpeed's CPU collective (about half a minute, once) ..."
	@CXX=$(CXX) $(BIN)/python -m trainers.compiled_ops
	@touch $@

demo: $(READY)
	@$(BIN)/vitscale demo

serve: $(READY)
	@$(BIN)/vitscale serve

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/hadolint deploy/Dockerfile
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec deploy/compose.yaml

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The three packages side by side.
test-unit: $(READY)
	@$(MAKE) --no-print-directory --jobs --output-sync=target test-unit-api test-unit-service test-unit-trainers

test-unit-%: $(READY)
	$(BIN)/pytest -m 'not slow' tests/$*

test-integration: $(READY)
	$(BIN)/pytest -n 2 --dist loadfile -m slow tests/trainers tests/service tests/api
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder tests/integration tests/faults

# Hosts on this machine, with a slow one and slow links: what is measured there is known. Needs root, else it is skipped.
# By itself, on a machine that does nothing else: its bounds are of measured time.
test-lab: $(READY)
	$(BIN)/pytest tests/lab

test: lint test-unit test-integration

bench: $(READY)
	$(BIN)/python -m tests.benchmarks --output bench.json

# On a machine with CUDA: what its first GPU does, in under eight minutes, without Ray.
gpu-check: $(READY)
	@$(BIN)/python -m trainers.gpu_check --output gpu_check.json

# The README's pictures, each from the last study of the running server: the demo's table (after
# `vitscale submit preset:demo --watch`), and communication's share (after `submit preset:communication-share --watch`).
picture: $(READY)
	$(BIN)/vitscale results latest | $(BIN)/python docs/terminal_picture.py docs/demo.svg 'vitscale results latest'

picture-share: $(READY)
	$(BIN)/vitscale results latest --format json | $(BIN)/python docs/share_picture.py docs/communication_share.svg

# Writes the exact versions of what is installed now; run it after a deliberate upgrade.
lock: $(READY)
	$(BIN)/pip freeze --exclude-editable | grep -v '^vitscale' > constraints.txt

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
