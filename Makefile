# Thin: every rule is a CMake preset or a script. `make help` lists them.
PORT ?= 8000
SECONDS ?= 60

.PHONY: help serve demo smollm2 test bench format format-check lint fuzz setup octet clean
.DEFAULT_GOAL := help

help:
	@echo 'make serve         install what is missing, build, quantize the demo model, compare, and'
	@echo '                   serve it on 127.0.0.1:8000 (PORT=N for another port)'
	@echo 'make demo          the same, but end with a sample completion'
	@echo 'make smollm2       download a real model (SmolLM2-135M-Instruct, 93 MB), make it BF16 and'
	@echo '                   FP8 checkpoints, and ask it something'
	@echo 'make test          all tests, the format check and 10 s of every fuzz target'
	@echo 'make bench         decode and prefill speed of the llama-3.2-1b shape, BF16 and FP8'
	@echo 'make fuzz          fuzz every parser for SECONDS=60 each'
	@echo 'make format        format the sources (format-check: only look)'
	@echo 'make lint          clang-tidy over src (minutes)'
	@echo 'make octet         build build/cpu/octet alone'
	@echo 'make clean         remove build/'

setup:
	@scripts/setup.sh

# The tests are configured by `make test` only, so that serving needs no test packages.
octet: setup
	@test -f build/cpu/build.ninja || cmake --preset cpu -DOCTET_TESTS=OFF
	@cmake --build build/cpu --target octet

serve: octet
	@scripts/demo.sh serve --port $(PORT)

demo: octet
	@scripts/demo.sh demo

smollm2: octet
	@scripts/smollm2.sh

test:
	@scripts/test.sh

bench: octet
	@scripts/bench.sh

format:
	@scripts/format.sh

format-check:
	@scripts/format.sh --check

lint:
	@scripts/setup.sh --lint
	@scripts/lint.sh

fuzz:
	@scripts/setup.sh --tests
	@scripts/fuzz.sh $(SECONDS)

clean:
	rm -rf build
