# The two commands of the README are `make demo` and `make test`; each sets up what it needs.
# Not PYTHON: that is the user's, who may name there what scripts/setup.sh makes .venv with.
VENV_PYTHON := .venv/bin/python
export PYO3_PYTHON := $(CURDIR)/$(VENV_PYTHON)
# Where the scripts look for what was built.
export CARGO_TARGET_DIR := $(CURDIR)/target

.PHONY: help demo test build man lint bench bench-truth bench-overhead bench-collector bench-top bench-report pictures clean-storage

help:
	@echo 'make demo            train a small network on slow storage and show where its time went'
	@echo 'make test            set up, build and run every test'
	@echo 'make build           the program and the Python package, optimised'
	@echo 'make man             man pages of all verbs, into target/man'
	@echo 'make lint            formatting, clippy, licences and sources'
	@echo 'make ebpf            rebuild the committed kernel object; make ebpf-check compares'
	@echo 'make test-kernels    load the kernel side on other kernels, in virtual machines'
	@echo 'make pictures        the README pictures, from the recording of the demo'
	@echo 'make bench-truth     measured shares beside the true ones'
	@echo 'make bench-overhead  what measuring costs, beside other tools'
	@echo 'make bench-collector what the collector costs beside many ranks, and what it loses when flooded'
	@echo 'make bench-top       what watching a job of 64 ranks costs'
	@echo 'make bench-report    what reports of a day of training cost'

demo:
	@scripts/setup.sh demo
	@$(MAKE) --no-print-directory build
	@demo/run.sh

test:
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory build
	@cargo build --release --quiet -p slowfs
	@scripts/test.sh

# Quiet on success: the second `make demo` has nothing to say here.
build: $(VENV_PYTHON)
	@cargo build --release --quiet
	@probe/python/stage.sh release >/dev/null

man:
	@cargo run --release --quiet -- man target/man
	@echo 'man pages are in target/man: man -l target/man/stallscope-run.1'

lint: $(VENV_PYTHON)
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --quiet -- -D warnings
	@if command -v cargo-deny >/dev/null; then cargo deny --log-level error check bans licenses sources; \
	else echo 'lint: licences, bans and sources were not checked; `cargo install cargo-deny --locked` gets what checks them' >&2; fi

$(VENV_PYTHON):
	@scripts/setup.sh demo

bench: bench-truth bench-overhead bench-collector bench-top bench-report

bench-truth:
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory build
	@$(VENV_PYTHON) bench/truth.py $(ARGS)

bench-overhead:
	@scripts/setup.sh bench
	@$(MAKE) --no-print-directory build
	@$(VENV_PYTHON) bench/overhead.py $(ARGS)

bench-collector:
	@scripts/setup.sh demo
	@$(MAKE) --no-print-directory build
	@cargo build --release --quiet -p swarm
	@$(VENV_PYTHON) bench/collector.py $(ARGS)

bench-top:
	@scripts/setup.sh bench
	@$(MAKE) --no-print-directory build
	@cargo build --release --quiet -p swarm
	@$(VENV_PYTHON) bench/top.py $(ARGS)

bench-report:
	@scripts/setup.sh demo
	@$(MAKE) --no-print-directory build
	@cargo build --release --quiet -p madeup
	@$(VENV_PYTHON) bench/report.py $(ARGS)

pictures:
	@$(MAKE) --no-print-directory build
	@scripts/pictures.sh

# What a killed demo or benchmark left mounted; their next start does the same.
clean-storage:
	@python3 truth/storage.py down --image target/truth/storage.img --mount target/truth/storage
	@python3 truth/storage.py down --image target/demo/storage.img --mount target/demo/data

-include ebpf/ebpf.mk
