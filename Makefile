# Two commands that matter: `make run` trains a model over isthmus, `make test` tests everything.
# Both prepare the machine first (tools/setup.sh); `make` alone prints this list.
.DEFAULT_GOAL := help
.PHONY: help setup package run run-crash test check long format wheel clean

# What to add to `pip install torch==2.13.0`. The plain package draws gigabytes of CUDA wheels;
# for the CPU build: ISTHMUS_TORCH_PIP_ARGS="--index-url https://download.pytorch.org/whl/cpu"
ISTHMUS_TORCH_PIP_ARGS ?=
# The library reports every ISTHMUS_ variable that it does not know, and this one is not its own.
unexport ISTHMUS_TORCH_PIP_ARGS

# Releases of torch that `make wheel` makes shims for; without, the one in .venv.
TORCH ?=

# Compilers at once.
export JOBS ?= 2

help:  ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' Makefile

setup:  ## system packages (apt, if allowed) and the Python environment in .venv
	@tools/setup.sh $(ISTHMUS_TORCH_PIP_ARGS)

package: setup
	@tools/install.sh

run: package  ## train a small GPT over isthmus, 2 nodes of 2 ranks, and compare with Gloo
	@PATH="$(CURDIR)/.venv/bin:$$PATH" examples/train/run.sh

run-crash: package  ## the same, and a rank is killed in mid-step
	@PATH="$(CURDIR)/.venv/bin:$$PATH" examples/train/run_crash.sh

test: setup  ## build; unit, conformance, simulation, multi-process and Python tests
	@tools/test.sh

check: setup  ## format, style, layers, headers, clang-tidy, sanitizers, labs
	@tools/check.sh

long: package  ## soaks, kills, repeated tests, shaped tables, every torch: over an hour on 2 cores
	@tools/run_long.sh

format: setup  ## lay out every C++ file
	@git ls-files -z --cached --others --exclude-standard -- '*.cc' '*.h' \
	  | xargs -0 -r .venv/bin/clang-format -i

wheel: setup  ## the Python package as a wheel, in dist/; TORCH="2.12.1 2.13.0" names releases
	@tools/wheel.sh $(TORCH)

clean:  ## remove what was built; .venv stays
	@rm -rf build dist run-output
