# SPDX-License-Identifier: Apache-2.0

.DEFAULT_GOAL := help
.PHONY: run test bench quick check docs fuzz wheel deb help

.NOTPARALLEL:  # commands share builds

SECONDS = 60
unexport SECONDS  # bash has a timer of that name, which would start at the exported value

run: ## set up, build, and run the main job on its built-in example
	@scripts/setup.sh run
	@scripts/build.sh release qkv_tool
	@mkdir -p build/demo
	@build/release/bin/qkv demo -o build/demo/alignment.svg -o build/demo/alignment.npz

test: ## set up, build, and run all tests
	@scripts/setup.sh test
	@scripts/build.sh release
	@scripts/python_package.sh
	@scripts/test.sh release

bench: ## set up, build, and measure: speed against the peak and other libraries (minutes)
	@scripts/setup.sh bench
	@scripts/bench.sh

quick: ## what a change must pass besides `make test`: format, rules, headers, address sanitizer
	@scripts/setup.sh check
	@scripts/check.sh --quick

check: ## what a release must pass, hours: both compilers, all repetitions, all sanitizers
	@QKV_CUDA=ON scripts/setup.sh check
	@scripts/check.sh

docs: ## set up, build the site of the documents: build/docs/html/index.html
	@scripts/setup.sh docs
	@scripts/python_package.sh
	@scripts/site.sh

wheel: ## set up, build wheels for x86-64 and AArch64 with what they link: dist/qkv-*.whl
	@scripts/setup.sh test
	@scripts/setup.sh pack
	@scripts/wheel.sh x86_64
	@scripts/wheel.sh aarch64

deb: ## set up, build a package for this release of Debian: dist/qkv_*.deb
	@scripts/setup.sh pack
	@scripts/deb.sh

fuzz: ## malformed input for every reader, 60 s each (SECONDS=5: shorter); not part of the tests
	@scripts/setup.sh fuzz
	@scripts/fuzz.sh $(SECONDS)

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
