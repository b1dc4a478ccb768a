# Targets of the kernel side. Included by the Makefile of the workspace, whose folder they run in.

BPF_CLANG ?= clang-19
BPF_STRIP ?= llvm-strip-19
BPF_DIR := ebpf/programs
BPF_OBJECT := $(BPF_DIR)/stallscope.bpf.o
BPF_SOURCES := $(wildcard $(BPF_DIR)/*.h $(BPF_DIR)/*.bpf.c)

# Another clang makes other bytes, so that `ebpf-check` can only hold for the pinned one. No path of this
# machine gets into the object, and the strip leaves BTF and CO-RE relocations alone.
BPF_BUILD = $(BPF_CLANG) -target bpf -mcpu=v3 -O2 -g -Wall -Wextra -Werror -nostdinc \
	-ffile-prefix-map=$(CURDIR)=. -c $(BPF_DIR)/stallscope.bpf.c -o $(1) && $(BPF_STRIP) -g $(1)

.PHONY: ebpf ebpf-check test-kernels

## ebpf: rebuild the committed kernel object (needs clang-19)
ebpf: $(BPF_OBJECT)

$(BPF_OBJECT): $(BPF_SOURCES)
	$(call BPF_BUILD,$@)

## ebpf-check: prove that the committed object is what the sources make
ebpf-check:
	@built=$$(mktemp) && trap 'rm -f $$built' EXIT && $(call BPF_BUILD,$$built) && \
	if cmp -s $$built $(BPF_OBJECT); then echo "$(BPF_OBJECT) is what the sources make"; \
	else echo "$(BPF_OBJECT) differs from its sources; run 'make ebpf' and commit it" >&2; exit 1; fi

## test-kernels: load, attach and follow a child on Debian's kernels in a virtual machine
test-kernels:
	ebpf/tests/kernels/run.sh
