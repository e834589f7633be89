# make demo               a checkpoint file becomes a picture, with PyTorch and with OpenVINO
# make test               ruff, mypy, eslint, and the tests that take a moment each: some five minutes
# make test-webui-pins    what the WebUI's own pins can change (torch 2.1.2, transformers 4.30.2, gradio 3.41.2)
# make test-full          the tests that make test leaves out: whole programs, browsers, architectures, killed processes
# make test-longest       the whole suite under both, with the rows of long tables that the others leave out
# make soundness          thousands of mutations of networks and of random graphs, compared with PyTorch (ARGS="--seed 1 --jobs 2")
# make kills              a batch that is killed at random moments, fifty times in one process and on Ray, and fifty runs on two
#                         nodes whose driver, workers or node are killed; and processes that give weights back (KILLS=n, KILL_SEED=n)
# make fuzz               thousands of random inputs at every entry (FUZZ=n)
# make audit              known holes in the packages that are installed (pip-audit, npm audit)
# make test-matrix        a short part of the suite with torch 2.1 to 2.13 and Python 3.10 to 3.13 (ARGS="2.6.0/3.13 --list")
# make figures            the tables, numbers and plots of README.md and docs/ from benchmarks/results
# make recording          docs/images/recording.webp, by a real browser; of a real WebUI with WEBUI_URL, or WEBUI_DIR and WEBUI_PYTHON
# make bench              the benchmarks; the peers' packages go into .venv-peers, .venv-peers-onnx and .venv-peers-openvino
# Everything is installed into .venv (.venv-webui-pins) in this folder. TORCH=torch==2.x chooses another torch.

TORCH  ?= torch==2.13.0
PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3.10 python3,$(shell $(p) -c 'import sys; print(sys.executable)' 2>/dev/null)))
PYTHON_PINS ?= $(firstword $(wildcard $(HOME)/.pyenv/versions/3.10.*/bin/python3.10) \
                $(foreach p,python3.10 python3.11,$(shell $(p) -c 'import sys; print(sys.executable)' 2>/dev/null)))
ARGS ?=
# Tests run in as many processes as this, each with one thread of PyTorch's; in one where they share a real WebUI. One more than
# the two processors that CI has: some tests wait for a browser or for other processes.
JOBS ?= $(if $(WEBUI_URL)$(WEBUI_DIR),0,3)

VENV := .venv
PINS := .venv-webui-pins
AUDIT := .venv-audit
PEERS := .venv-peers
PEERS_ONNX := .venv-peers-onnx
PEERS_OPENVINO := .venv-peers-openvino
PIP  := pip install --quiet --disable-pip-version-check
PYTEST := -m pytest -n $(JOBS) --dist worksteal
# Under the WebUI's pins: what traces, converts and compiles with torch, and what the WebUI and Gradio call. Files, the command
# line, checkpoints, training, reports and the standalone page do not run in the WebUI, and what is stored, remembered and does
# not fit into memory or on the disk is the same with every torch. PINS_TESTS=tests runs all.
PINS_TESTS ?= $(wildcard tests/model/test_compiler.py tests/soundness/test_random_graphs.py \
                $(addprefix tests/,engine guards hosts/webui int8 memory model/conversion model/transformations torch_compile trace ui) \
                $(addprefix tests/integration/,architectures browser/test_webui.py e2e fidelity operators)) \
              $(addprefix --ignore=tests/,$(addprefix engine/test_,faults.py forged_entries.py history.py crash_sentinel.py) torch_compile/report)

.PHONY: demo test test-full soundness test-webui-pins test-longest test-matrix lint javascript fuzz kills audit bench figures recording clean

demo: $(VENV)/.ready
	$(VENV)/bin/python -m ov_backend demo $(ARGS)

test: $(VENV)/.ready-test lint javascript
	OMP_NUM_THREADS=1 $(VENV)/bin/python $(PYTEST) -m "not slow" $(ARGS)

test-full: $(VENV)/.ready-test
	OMP_NUM_THREADS=1 $(VENV)/bin/python $(PYTEST) -m slow $(ARGS)

soundness: $(VENV)/.ready-test
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m tests.soundness $(ARGS)

test-webui-pins: $(PINS)/.ready-test
	OMP_NUM_THREADS=1 $(PINS)/bin/python $(PYTEST) $(PINS_TESTS) $(ARGS)

test-longest: lint javascript
	ZOO=all OMP_NUM_THREADS=1 $(VENV)/bin/python $(PYTEST) $(ARGS)
	ZOO=all $(MAKE) test-webui-pins PINS_TESTS=tests

# One environment at a time in .venv-matrix; the builds of torch for CUDA take some 5 GiB of disk while they are there.
test-matrix:
	$(PYTHON) -m tests.matrix $(ARGS)

lint: $(VENV)/.ready-test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

# The page's JavaScript: lint and unit tests. Without npm or Chromium (installed here where apt-get may) it says so.
javascript: node_modules/.ready
	@command -v chromium >/dev/null || { command -v apt-get >/dev/null && test "$$(id -u)" = 0 \
	  && apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium >/dev/null; } \
	  || echo "No Chromium: the browser tests will be skipped (apt-get install chromium)"
	@test -d node_modules/eslint && npm run --silent lint && npm run --silent test \
	  || { test ! -d node_modules/eslint && echo "No npm: the JavaScript is neither linted nor tested"; }

node_modules/.ready: package.json
	@command -v npm >/dev/null && npm install --silent --no-audit --no-fund; mkdir -p node_modules && touch $@

# Thousands of random inputs at every entry, and every value at every place of a stored entry.
fuzz: $(VENV)/.ready-test
	FUZZ=$${FUZZ:-1000} OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest tests/test_fuzz.py tests/engine/test_forged_entries.py $(ARGS)

# A batch that is killed at random moments: every picture is there once and whole in the end. The same for low memory: the next
# process draws the right picture.
kills: $(VENV)/.ready-test
	KILLS=$${KILLS:-50} OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest tests/batch/test_kill.py $(ARGS)
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m tests.soundness.batch_kills --count $${KILLS:-50} --seed $${KILL_SEED:-0}
	for kind in kills picture_kills; do \
	  OMP_NUM_THREADS=1 $(VENV)/bin/python -m tests.soundness.$$kind --count $${KILLS:-50} --seed $${KILL_SEED:-0} || exit 1; done

# Known holes in what is installed: Python's packages of both environments, and the tools of the page's JavaScript.
audit: $(AUDIT)/.ready
	@$(AUDIT)/bin/python -m tests.audit $(AUDIT)/bin/pip-audit $(wildcard $(VENV) $(PINS))

$(AUDIT)/.ready:
	test -x $(AUDIT)/bin/python || $(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/$(PIP) pip-audit
	touch $@

bench: $(VENV)/.ready-test $(PEERS)/.ready $(PEERS)/.ready-cpp $(PEERS_ONNX)/.ready $(PEERS_OPENVINO)/.ready
	$(VENV)/bin/python -m benchmarks $(ARGS)

# Refuses what was changed by hand, and runs of different commits in one table.
figures: $(VENV)/.ready
	$(VENV)/bin/python -m benchmarks.figures

recording: $(VENV)/.ready-test
	$(VENV)/bin/python -m docs.record $(ARGS)

# optimum-intel asks for torchvision, whose builds do not go with every build of torch; nothing here needs it.
$(PEERS)/.ready: benchmarks/requirements-peers.txt
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/$(PIP) '$(TORCH)'
	$(PEERS)/bin/$(PIP) -r benchmarks/requirements-peers.txt
	$(PEERS)/bin/pip uninstall --quiet --disable-pip-version-check --yes torchvision
	touch $@

# It is compiled here. Without it, the other peers are measured.
$(PEERS)/.ready-cpp: benchmarks/requirements-peers-cpp.txt $(PEERS)/.ready
	$(PEERS)/bin/$(PIP) -r $< && touch $@ || echo "$< could not be installed; it needs a C++ compiler"

$(PEERS_ONNX)/.ready: benchmarks/requirements-peers-onnx.txt
	test -x $(PEERS_ONNX)/bin/python || $(PYTHON) -m venv $(PEERS_ONNX)
	$(PEERS_ONNX)/bin/$(PIP) '$(TORCH)'
	$(PEERS_ONNX)/bin/$(PIP) -r benchmarks/requirements-peers-onnx.txt
	touch $@

$(PEERS_OPENVINO)/.ready: benchmarks/requirements-peers-openvino.txt
	test -x $(PEERS_OPENVINO)/bin/python || $(PYTHON) -m venv $(PEERS_OPENVINO)
	$(PEERS_OPENVINO)/bin/$(PIP) -r benchmarks/requirements-peers-openvino.txt
	touch $@

# OpenVINO computes, so PyTorch's build for the CPU suffices. Where pip finds none, it takes the usual one, on Linux with CUDA.
$(VENV)/.ready: pyproject.toml
	@echo "PyTorch, OpenVINO and the rest are installed into $(VENV); this takes some minutes."
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/$(PIP) '$(patsubst %+cpu,%,$(TORCH))+cpu' 2>/dev/null || { test "$$(uname -sm)" != "Linux x86_64" \
	  || echo "pip finds no build of PyTorch for the CPU, and takes one with CUDA (some 5 GiB); README.md says how to avoid that."; \
	  $(VENV)/bin/$(PIP) '$(TORCH)'; }
	$(VENV)/bin/$(PIP) -e '.[demo]'
	touch $@

$(VENV)/.ready-test: $(VENV)/.ready tests/requirements-no-deps.txt
	$(VENV)/bin/$(PIP) -e '.[demo,test]'
	$(VENV)/bin/$(PIP) --no-deps -r tests/requirements-no-deps.txt
	touch $@

$(PINS)/.ready-test: pyproject.toml tests/requirements-webui-pins.txt tests/requirements-webui-pins-no-deps.txt
	test -x $(PINS)/bin/python || $(PYTHON_PINS) -m venv $(PINS)
	$(PINS)/bin/$(PIP) -r tests/requirements-webui-pins.txt
	$(PINS)/bin/$(PIP) --no-deps -r tests/requirements-webui-pins-no-deps.txt -e .
	touch $@

clean:
	rm -rf $(VENV) $(PINS) $(AUDIT) $(PEERS) $(PEERS_ONNX) $(PEERS_OPENVINO) .venv-matrix build *.egg-info
