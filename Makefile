# The two commands of the README are `make demo` and `make test`; each sets up what it needs.
# Not PYTHON: that is the user's, who may name there what scripts/setup.sh makes .venv with.
VENV_PYTHON := .venv/bin/python
export PYO3_PYTHON := $(CURDIR)/$(VENV_PYTHON)
# Where the scripts look for what was built.
export CARGO_TARGET_DIR := $(CURDIR)/target

# What `make docs` gets where there is none; in a folder of its own, as a user's mdbook is the user's.
MDBOOK_VERSION := 0.5.4
MDBOOK := $(or $(shell command -v mdbook),target/tools/bin/mdbook)

.PHONY: help demo test build man docs clippy lint sbom bench bench-truth bench-overhead bench-gpu bench-collector bench-top bench-report bench-whatif bench-control bench-knobs bench-node bench-node-cores bench-node-scale bench-node-shares bench-script bench-checkpoint bench-budget bench-goodput bench-cache bench-cache-unmodified bench-fetchers bench-importance chaos-checkpoint chaos fuzz pictures clean-storage bench-pack bench-pack-scale bench-pack-accuracy bench-decode

help:
	@echo 'make demo            train a small network on slow storage and show where its time went'
	@echo 'make demo ACT=1      on storage that is far away and with saves each second, and a controller that does something about both'
	@echo 'make demo CACHE=1    the same job again with `run --cache`: faster, and the same losses'
	@echo 'make demo CKPT=1     kill a training job at random moments, and see it end as if nobody had'
	@echo 'make test            set up, build and run every test'
	@echo 'make build           the program and the Python package, optimised'
	@echo 'make man             man pages of all verbs, into target/man'
	@echo 'make docs            docs/ as a site, into target/site, and the page of the Python API (mdBook)'
	@echo 'make lint            formatting, clippy, ruff, mypy, licences, sources and advisories'
	@echo 'make sbom            what the program and the package are made of, into target/sbom.json (CycloneDX)'
	@echo 'make ebpf            rebuild the committed kernel object; make ebpf-check compares'
	@echo 'make test-kernels    load the kernel side on other kernels, in virtual machines'
	@echo 'make pictures        the README pictures, from the recording of the demo'
	@echo 'make bench-truth     measured shares beside the true ones'
	@echo 'make bench-overhead  what measuring costs, beside other tools'
	@echo 'make bench-collector what the collector costs beside many ranks, and what it loses when flooded'
	@echo 'make bench-top       what watching a job of 64 ranks costs'
	@echo 'make bench-gpu       what checkpoints and measuring cost a job on a GPU; needs one'
	@echo 'make bench-checkpoint what a checkpoint costs, beside torch.save, safetensors, DCP and CheckFreq'
	@echo 'make bench-budget    whether checkpoints keep their budget, beside a neighbour that reads or writes the disk'
	@echo 'make bench-goodput   when to save: the rules on traces of failures, beside the best interval in hindsight'
	@echo 'make bench-cache     what a sample costs from the pool, beside the page cache, Redis and memcached'
	@echo 'make bench-cache-unmodified  `run --cache` and `attach --cache` beside the page cache, at equal memory'
	@echo 'make bench-pack-scale  packs of 1 and 10 million files: opening, first batch, look-ups, listing, memory'
	@echo 'make bench-pack      files against their pack and others'"'"' shards, cold, on storage that gives 1,000 reads and 100 MiB a second'
	@echo 'make bench-pack-accuracy  what a network learns from class-sorted data with each shuffle of a pack'
	@echo 'make bench-decode    pictures a second: Pillow, torchvision, FFCV and PackedImages, on the same files'
	@echo 'make bench-fetchers  what 0, 4 and 8 fetchers gain on slow and on throttled storage'
	@echo 'make bench-importance  what each sampling reads, and what it costs in accuracy; ARGS=--packages: what packages save'
	@echo 'make bench-report    what reports of a day of training cost'
	@echo 'make fuzz            fuzz whatever reads bytes from elsewhere: SECONDS=300 a target, TARGETS="recording pool"'
	@echo 'make chaos           kill -9, full disk, no memory, no descriptors, frozen collectors, storms beside a real job (root: all of them)'
	@echo 'make chaos-checkpoint  kill a job that saves 1,000 times, fail its disk in all ways'
	@echo 'make bench-control   the controller on simulated jobs and on real ones on slow storage'
	@echo 'make bench-knobs     what each knob of the controller is worth to the job of `make demo ACT=1`'
	@echo 'make bench-node      four jobs that nobody starts with `run`, with a service and without (root)'
	@echo 'make bench-node-cores  whether a lower priority of added workers spares the jobs beside them (root)'
	@echo 'make bench-node-shares how the service divides memory, beside equal parts, one LRU cache and the best division (root)'
	@echo 'make bench-node-scale  the service beside 1,000 jobs, and two hours (SECONDS=7200) in which one ends and one begins each second (root)'
	@echo 'make bench-script    the same on a public script: SCRIPT=path/to/pytorch/examples/imagenet/main.py'
	@echo 'make bench-whatif    what what-if predicts beside runs really made (root)'

demo:
	@echo 'demo: 1 of 4: PyTorch and its kin (the first time about 3 GB are downloaded into .venv)' >&2
	@scripts/setup.sh demo
	@echo 'demo: 2 of 4: the program (the first time some 200 crates are compiled, which takes minutes)' >&2
	@$(MAKE) --no-print-directory build
	@demo/run.sh

test:
	@scripts/setup.sh test
	@scripts/test.sh

build: $(VENV_PYTHON)
	@scripts/cached.sh scripts/progress.sh build probe/python/stage.sh release

man:
	@cargo run --release --quiet -- man target/man
	@echo 'man pages are in target/man: man -l target/man/stallscope-run.1'

docs: $(MDBOOK)
	@python3 scripts/api_page.py
	@python3 scripts/site.py $(MDBOOK)

target/tools/bin/mdbook:
	@echo 'docs: mdBook $(MDBOOK_VERSION) is compiled, which takes minutes, once' >&2
	@scripts/progress.sh docs cargo install mdbook --version $(MDBOOK_VERSION) --locked --no-default-features --features search \
	    --root target/tools --target-dir target/mdbook

clippy:
	scripts/cached.sh cargo clippy --workspace --all-targets --quiet -- -D warnings

lint: $(VENV_PYTHON)
	cargo fmt --all --check
	@$(MAKE) --no-print-directory clippy
	@if [ -x .venv/bin/mypy ]; then .venv/bin/ruff check --quiet . && cd probe/python && ../../.venv/bin/mypy --cache-dir ../../target/mypy; \
	else echo 'lint: Python was not checked; `scripts/setup.sh test` gets ruff and mypy' >&2; fi
	@if command -v cargo-deny >/dev/null; then cargo deny --log-level error check bans licenses sources && scripts/advisories.sh; \
	else echo 'lint: licences, bans and sources were not checked; `cargo install cargo-deny --locked` gets what checks them' >&2; fi

sbom:
	@mkdir -p target && python3 scripts/sbom.py target/sbom.json && echo 'what is built in is in target/sbom.json'

$(VENV_PYTHON):
	@scripts/setup.sh demo

bench: bench-truth bench-overhead bench-collector bench-top bench-report bench-whatif bench-control bench-knobs bench-node bench-node-shares bench-checkpoint bench-budget bench-goodput bench-cache bench-cache-unmodified bench-fetchers bench-importance bench-pack bench-pack-scale bench-pack-accuracy bench-decode

bench-truth:
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory build
	@$(VENV_PYTHON) bench/truth.py $(ARGS)

bench-overhead:
	@scripts/setup.sh bench
	@$(MAKE) --no-print-directory build
	@$(VENV_PYTHON) bench/overhead.py $(ARGS)

bench-gpu:
	@scripts/setup.sh bench
	@$(MAKE) --no-print-directory build
	@$(VENV_PYTHON) bench/gpu.py $(ARGS)

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

bench-checkpoint:
	@scripts/setup.sh bench
	@$(MAKE) --no-print-directory build
	@$(VENV_PYTHON) bench/checkpoint.py $(ARGS)

bench-budget:
	@scripts/setup.sh bench
	@$(MAKE) --no-print-directory build
	@$(VENV_PYTHON) bench/budget.py $(ARGS)

bench-goodput:
	@scripts/setup.sh demo
	@$(MAKE) --no-print-directory build
	@cargo build --release --quiet -p stallscope-checkpoint --example goodput
	@$(VENV_PYTHON) bench/goodput.py $(ARGS)

bench-whatif:
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory build
	@$(VENV_PYTHON) bench/whatif.py $(ARGS)

# The simulator's table first; both are printed, whether or not a bar holds.
bench-control:
	@scripts/setup.sh bench
	@$(MAKE) --no-print-directory build
	@cargo build --release --quiet -p control-bench
	@target/release/control-bench; simulated=$$?; $(VENV_PYTHON) bench/control_real.py $(ARGS) && exit $$simulated

bench-knobs:
	@scripts/setup.sh demo
	@$(MAKE) --no-print-directory build
	@$(VENV_PYTHON) bench/knobs.py $(ARGS)

bench-node:
	@scripts/setup.sh demo
	@$(MAKE) --no-print-directory build
	@$(VENV_PYTHON) bench/node.py $(ARGS)

bench-node-cores:
	@scripts/setup.sh demo
	@$(VENV_PYTHON) bench/node_cores.py $(ARGS)

bench-node-shares:
	@scripts/setup.sh demo
	@$(MAKE) --no-print-directory build
	@$(VENV_PYTHON) bench/node_shares.py $(ARGS)

# Two hours of churn, or SECONDS of it.
bench-node-scale:
	@scripts/setup.sh demo
	@$(MAKE) --no-print-directory build
	@$(VENV_PYTHON) bench/node_scale.py --seconds $(or $(SECONDS),7200) $(ARGS)

bench-cache:
	@scripts/setup.sh bench
	@$(MAKE) --no-print-directory build
	@$(VENV_PYTHON) bench/cache.py $(ARGS)

bench-cache-unmodified:
	@scripts/setup.sh bench
	@$(MAKE) --no-print-directory build
	@$(VENV_PYTHON) bench/cache_unmodified.py $(ARGS)

bench-fetchers:
	@scripts/setup.sh demo
	@$(MAKE) --no-print-directory build
	@$(VENV_PYTHON) bench/fetchers.py $(ARGS)

bench-importance:
	@scripts/setup.sh demo
	@$(MAKE) --no-print-directory build
	@cargo build --release --quiet -p importance-bench
	@$(VENV_PYTHON) bench/importance.py $(ARGS)

bench-pack:
	@scripts/setup.sh demo
	@$(MAKE) --no-print-directory build
	@$(VENV_PYTHON) bench/pack.py $(ARGS)

bench-pack-accuracy:
	@scripts/setup.sh demo
	@$(MAKE) --no-print-directory build
	@$(VENV_PYTHON) bench/pack_accuracy.py $(ARGS)

bench-pack-scale:
	@scripts/setup.sh demo
	@$(MAKE) --no-print-directory build
	@cargo build --release --quiet -p packscale
	@$(VENV_PYTHON) bench/pack_scale.py $(ARGS)

bench-decode:
	@scripts/setup.sh decode
	@$(MAKE) --no-print-directory build
	@$(VENV_PYTHON) bench/decode.py $(ARGS)

bench-script:
	@scripts/setup.sh bench
	@$(MAKE) --no-print-directory build
	@$(VENV_PYTHON) bench/public_script.py $(SCRIPT) $(ARGS)

# A thousand times SIGKILL of our own processes, and all else that can happen to them, beside a job that has to compute the same.
chaos:
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory build
	@$(VENV_PYTHON) tests/chaos/chaos.py $(ARGS)

# A thousand times SIGKILL, and every operation of a save failing, cut off by power or lied about once.
chaos-checkpoint:
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory build
	@STALLSCOPE_KILLS=1000 cargo test --release --quiet -p stallscope-checkpoint --test kill --test faults --test hostile
	@STALLSCOPE_RESUMES=30 STALLSCOPE_RANK_KILLS=10 $(VENV_PYTHON) -m pytest -q probe/python/tests/test_checkpointer.py \
	    probe/python/tests/test_checkpoint_ranks.py

fuzz:
	@scripts/setup.sh test
	@FEATURES=collector scripts/fuzz.sh $(or $(SECONDS),300) $(TARGETS)

pictures:
	@$(MAKE) --no-print-directory build
	@scripts/pictures.sh

# What a killed demo or benchmark left mounted; their next start does the same.
clean-storage:
	@python3 truth/storage.py down --image target/truth/storage.img --mount target/truth/storage
	@python3 truth/storage.py down --image target/demo/storage.img --mount target/demo/data

-include ebpf/ebpf.mk
