# hola: `make` builds ./hola, `make help` lists the rest. Options: CC=clang, SAN=1 (address and undefined behaviour
# sanitizers), TSAN=1 (thread sanitizer), EMU_WATCH=1 (race detector for emulated kernels), V=1 (show the commands),
# ONLY="test_x grad_y" (run these tests only).
FUZZ_SECONDS ?= 300
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(JOBS)
endif
on = $(filter 1,$(1))
, := ,
BUILD := build/$(if $(call on,$(FUZZ)),fuzz,$(notdir $(CC))$(if $(call on,$(SAN)),-san)$(if $(call on,$(TSAN)),-tsan)$(if $(call on,$(EMU_WATCH)),-watch))

# Before compiling, lists missing packages and installs them if that needs no password (NO_APT=1: never). The check
# takes 20 ms.
GOALS := $(or $(MAKECMDGOALS),all)
BUILDS := $(filter-out help clean uninstall format test-arm,$(GOALS))
ifneq ($(BUILDS),)
ifneq ($(shell NO_APT='$(NO_APT)' CC='$(CC)' tools/deps.sh $(if $(filter test% demo deps fuzz%,$(GOALS)),test,build) >&2 && echo ok),ok)
$(error cannot build: see above)
endif
endif

WARN := -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wno-float-conversion -Wpointer-arith -Wvla -Wno-psabi -Werror
PKG_CONFIG ?= pkg-config
LIBS := -ljansson $(shell $(PKG_CONFIG) --libs libarchive 2>/dev/null) -lm -pthread# libarchive: optional, for .gz .xz .zst
MPI ?= $(shell $(PKG_CONFIG) --exists ompi 2>/dev/null && echo ompi)# optional, for several ranks in hola train
CLI_LIBS := $(if $(MPI),$(shell $(PKG_CONFIG) --libs $(MPI))) $(shell $(PKG_CONFIG) --libs libedit 2>/dev/null)# optional, line editing in hola generate -i
CFLAGS ?= $(if $(call on,$(SAN) $(TSAN) $(FUZZ)),-O1 -g1,-O3 -g1)
ALL_CFLAGS := -std=c11 $(CFLAGS) -fno-math-errno -fPIC -fvisibility=hidden $(WARN) -Iinclude -Isrc -MMD -MP -pthread
ALL_CFLAGS += $(if $(call on,$(TSAN) $(FUZZ)),-DHL_ONE_ISA) $(if $(filter -larchive,$(LIBS)),-DHL_HAVE_LIBARCHIVE) \
    $(if $(filter -ledit,$(CLI_LIBS)),-DHL_HAVE_LIBEDIT) \
    $(if $(MPI),-DHL_HAVE_MPI $(patsubst -I%,-isystem %,$(shell $(PKG_CONFIG) --cflags-only-I $(MPI))))
SANITIZE := $(if $(call on,$(SAN) $(FUZZ)),address$(,)undefined -fno-sanitize-recover=undefined,$(if $(call on,$(TSAN)),thread))
ALL_CFLAGS += $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer) $(if $(call on,$(FUZZ)),-fsanitize=fuzzer-no-link)
LDFLAGS += $(if $(SANITIZE),-fsanitize=$(SANITIZE))

# The fast ops are compiled once per instruction set; HL_ISA names each copy (src/backend/backend.h). Fuzzers, which
# test parsers, and the thread sanitizer use a single one.
ISAS_x86_64 := avx2 avx512
ISAS_aarch64 := neon
ISAS := base $(if $(call on,$(TSAN) $(FUZZ)),,$(ISAS_$(firstword $(subst -, ,$(shell $(CC) -dumpmachine 2>/dev/null)))))
FLAGS_ref := -DHL_ISA_REF
FLAGS_base := -ffp-contract=fast
FLAGS_avx2 := -ffp-contract=fast -mavx2 -mfma -mf16c
FLAGS_avx512 := -ffp-contract=fast -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c -mprefer-vector-width=512
FLAGS_neon := -ffp-contract=fast -DHL_NEON
# one file each is compiled once more with dot-product instructions, used if the processor has them
DOT_avx512 := avx512vnni avx512bf16
DOT_neon := dotprod
FILE_avx512vnni := quant_dot_cpu.c
FILE_avx512bf16 := bf16_dot_cpu.c
FILE_dotprod := quant_dot_cpu.c
FLAGS_avx512vnni := $(FLAGS_avx512) -mavx512vnni
FLAGS_avx512bf16 := $(FLAGS_avx512) -mavx512bf16
FLAGS_dotprod := $(FLAGS_neon) -march=armv8.2-a+dotprod

REF_SRC := $(sort $(wildcard src/ops/*/*_ref.c)) src/backend/cpu_table.c
FAST_SRC := $(sort $(wildcard src/ops/*/*_cpu.c)) src/backend/cpu_table.c
LIB_SRC := $(foreach d,core gguf backend ops/* fused/* mixers mixers/* model tokenizer chat data train eval plot serve,$(wildcard src/$(d)/*.c))
LIB_SRC := $(filter-out $(REF_SRC) $(FAST_SRC) %_mpi.c src/backend/cuda_%.c,$(sort $(LIB_SRC)))
CLI_SRC := $(sort $(wildcard src/cli/*.c)) $(if $(MPI),src/train/dist_mpi.c)
obj = $(patsubst %.c,$(BUILD)/$(1)/%.o,$(2))
LIB_OBJ := $(call obj,float,$(LIB_SRC)) $(call obj,ref,$(REF_SRC)) $(foreach i,$(ISAS),$(call obj,$(i),$(FAST_SRC))) \
    $(foreach i,$(ISAS),$(foreach d,$(DOT_$(i)),$(call obj,$(d),src/ops/linear/$(FILE_$(d)))))
DBL_OBJ := $(call obj,double,$(LIB_SRC)) $(call obj,double-ref,$(REF_SRC)) $(call obj,double-base,$(FAST_SRC))

say = $(if $(V),,@echo "  $(1)";)
include src/cuda/cuda.mk python/python.mk

# Build options as a dependency: $(BUILD)/NAME.made-with holds them and is rewritten only when they change, so that
# its dependents are rebuilt after a change of options or tools, and not otherwise. (Written while make parses this
# file, not by a rule, so that make -n is accurate.)
made_with = $(if $(BUILDS),$(shell mkdir -p $(BUILD))$(file >$(BUILD)/$(1).now,$(2))$(shell cd $(BUILD) && \
    { cmp -s $(1).now $(1).made-with || mv $(1).now $(1).made-with; } && rm -f $(1).now))
version = $(if $(1),$(shell $(1) --version 2>/dev/null | sed -n '/[0-9]\.[0-9]/{p;q}'))
$(call made_with,c,$(CC) $(call version,$(CC)) $(CXX) $(call version,$(CXX)) $(ALL_CFLAGS))
$(call made_with,cuda,$(CUDA) $(call version,$(CUDA)) $(NVCC_FLAGS) $(TARGETS))
$(call made_with,link,$(CC) $(LDFLAGS) $(LIBS) $(CLI_LIBS) $(LIB_OBJ) $(CLI_SRC))
inputs = $(filter %.o %.a,$^)
all: $(BUILD)/hola ## build the program, as ./hola (default)
	@ln -sf $(BUILD)/hola hola

$(BUILD)/libhola.a: $(LIB_OBJ)
$(BUILD)/libhola-double.a: $(DBL_OBJ)
$(BUILD)/%.a: $(BUILD)/link.made-with
	$(call say,AR $@) rm -f $@ && $(AR) rcs $@ $(inputs)
$(BUILD)/libhola.so.0: $(LIB_OBJ) $(BUILD)/link.made-with
	$(call say,LD $@) $(CC) $(LDFLAGS) -shared -Wl,-soname,libhola.so.0 -Wl,-z,defs -o $@ $(inputs) $(LIBS)
$(BUILD)/hola: $(call obj,float,$(CLI_SRC)) $(BUILD)/libhola.a
	$(call say,LD $@) $(CC) $(LDFLAGS) -o $@ $(inputs) $(LIBS) $(CLI_LIBS)
# Files included by the assembler, which -MMD does not track.
$(foreach k,float double,$(call obj,$(k),$(wildcard src/*/*page.c))): $(wildcard src/*/*.css src/*/*.js src/*/*.html)

define compile
$$(BUILD)/$(1)/%.o: %.c $$(BUILD)/c.made-with
	$$(call say,CC $$@) mkdir -p $$(@D) && $$(CC) $$(ALL_CFLAGS) $(2) -c -o $$@ $$<
endef
$(eval $(call compile,float,))
$(eval $(call compile,double,-DHL_DOUBLE))
$(eval $(call compile,double-ref,-DHL_DOUBLE -DHL_ISA=ref $(FLAGS_ref)))
$(eval $(call compile,double-base,-DHL_DOUBLE -DHL_ISA=base $(FLAGS_base)))
$(foreach i,ref $(ISAS) $(foreach i,$(ISAS),$(DOT_$(i))),$(eval $(call compile,$(i),-DHL_ISA=$(i) $(FLAGS_$(i)) $(if $(call on,$(FUZZ)),-fno-sanitize=all))))

# tests/test_x.c is built in float, tests/grad_x.c in double (finite differences), both with cmocka.
# tests/fuzz_x.c is a plain program that generates its own bad input; `make fuzz` runs it under libFuzzer.
# tests/test_x.sh runs the program itself.
PROGRAMS = $(patsubst tests/%.c,$(BUILD)/tests/%,$(sort $(wildcard tests/$(1)_*.c)))
FUZZ_TESTS := $(call PROGRAMS,fuzz)
# (with sanitizers, no second build of the same sources in double)
GRAD_TESTS := $(if $(call on,$(SAN) $(TSAN)),,$(call PROGRAMS,grad))
# (nor these, which compute for long or start other programs, and read no input that the other tests do not)
SLOW_TESTS := $(if $(call on,$(SAN) $(TSAN)),$(patsubst %,tests/test_%.sh,add_memory backends build demo examples fetch_eval \
    mpi pages published_model python python_torch sft study))
TESTS := $(EMU_TESTS) $(call PROGRAMS,test) $(GRAD_TESTS) $(FUZZ_TESTS) $(filter-out $(SLOW_TESTS),$(sort $(wildcard tests/test_*.sh)))
# (the longest, which mostly waits, first: last it would run alone)
TESTS := $(filter %/test_serve.sh,$(TESTS)) $(filter-out %/test_serve.sh,$(TESTS))
TESTS := $(if $(ONLY),$(filter $(addprefix %/,$(ONLY)),$(TESTS)),$(TESTS))
test_link = $(call say,LD $@) mkdir -p $(@D) && $(CC) $(ALL_CFLAGS) -O1 -Itests $(LDFLAGS) $(1) -o $@ $< $(2) $(LIBS)
$(BUILD)/tests/test_%: tests/test_%.c $(BUILD)/libhola.a
	$(call test_link,,$(BUILD)/libhola.a -lcmocka)
$(BUILD)/tests/grad_%: tests/grad_%.c $(BUILD)/libhola-double.a
	$(call test_link,-DHL_DOUBLE,$(BUILD)/libhola-double.a -lcmocka)
$(BUILD)/tests/fuzz_%: tests/fuzz_%.c $(BUILD)/libhola.a
	$(call test_link,$(if $(call on,$(FUZZ)),-DHL_LIBFUZZER -fsanitize=fuzzer),$(BUILD)/libhola.a)

tests: $(filter $(BUILD)/%,$(TESTS))
# with an emulator: a wrapper script that runs the program
$(BUILD)/hola-emulated: $(BUILD)/hola
	@printf '#!/bin/sh\nexec %s %s "$$@"\n' '$(RUNNER)' '$(abspath $<)' >$@ && chmod +x $@
test: $(if $(filter %/test_python.sh %/test_python_torch.sh,$(TESTS)),$(if $(EMU_TESTS),$(BUILD)/libhola-emu.so))
test: $(if $(filter %/test_promises.sh,$(TESTS)),$(BUILD)/bench/streams)
test: $(BUILD)/hola$(if $(RUNNER),-emulated) tests ## build and run all tests
	@HOLA=$(abspath $(BUILD)/hola$(if $(RUNNER),-emulated)) JOBS=$(JOBS) tests/run.sh $(TESTS)
test-arm:; @MAKE='$(MAKE)' ONLY='$(ONLY)' tools/test_arm.sh ## cross-compile for 64-bit ARM, some tests under qemu
soak: $(BUILD)/hola; @python3 tests/soak_serve.py $< ## hola serve under random misfortune for SOAK_SECONDS=600
demo: all ## train and compare small models with and without the exact memory (minutes)
	./hola demo $(ARGS)

# Benchmarks compare with OpenBLAS if it is installed; nothing else links to it.
BLAS_TEST := printf '\043include <cblas.h>\nint main(void) { return 0; }' | $(CC) -x c - -lopenblas -o /dev/null
BLAS := $(if $(filter bench%,$(GOALS)),$(shell $(BLAS_TEST) 2>/dev/null && echo -lopenblas))
$(eval $(call compile,bench$(BLAS),$(if $(BLAS),-DHL_HAVE_OPENBLAS)))
$(BUILD)/hola-bench$(BLAS): $(call obj,bench$(BLAS),$(CLI_SRC)) $(BUILD)/libhola.a
	$(call say,LD $@) $(CC) $(LDFLAGS) -o $@ $(inputs) $(LIBS) $(CLI_LIBS) $(BLAS)
bench: $(BUILD)/hola-bench$(BLAS) ## measure speed on this machine, with ARGS="--quick" for example
	$< bench $(ARGS)
$(BUILD)/bench/%: bench/bench_%.c $(BUILD)/libhola.a
	$(call test_link,$(if $(BLAS),-DHL_HAVE_OPENBLAS),$(BUILD)/libhola.a $(BLAS))
bench-%: $(BUILD)/bench/% ## build and run bench/bench_%.c, for example bench-gemm
	$< $(ARGS)

fuzz fuzz-quick: ## run libFuzzer (clang) on every parser for FUZZ_SECONDS=300; fuzz-quick: 10
	$(MAKE) --no-print-directory CC=clang FUZZ=1 $(if $(filter %quick,$@),FUZZ_SECONDS=10) fuzz-run
fuzz-run: $(FUZZ_TESTS:$(BUILD)/tests/%=fuzz-run-%)
fuzz-run-%: $(BUILD)/tests/%
	@mkdir -p $(BUILD)/corpus/$* && $< -max_total_time=$(FUZZ_SECONDS) -timeout=20 -print_final_stats=1 -artifact_prefix=$(BUILD)/$*- \
	    $(BUILD)/corpus/$* >$(BUILD)/$*.log 2>&1 || { tail -n 80 $(BUILD)/$*.log; exit 1; }
	@echo "  $*: $$(sed -n 's/^stat::number_of_executed_units: *//p' $(BUILD)/$*.log) inputs, nothing found"

check-style: $(BUILD)/libhola.a ## check format, includes, file sizes, exported names, documents
	@CC='$(CC)' tools/check-style.sh $(BUILD)/libhola.a
format: ## run clang-format on all sources
	clang-format -i $$(find include src tests bench tools examples -name '*.[ch]' -o -name '*.cu*' -o -name '*.[ch]pp')
deps: ## install the packages that building and testing need (Debian)

include tools/install.mk tools/pack.mk

help: ## print this list
	@awk -F ':.*## ' '/^[a-z% -]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' Makefile src/cuda/cuda.mk python/python.mk tools/install.mk tools/pack.mk
clean: ## remove everything that was built
	rm -rf build hola

.PRECIOUS: $(BUILD)/tests/% $(BUILD)/bench/%
.PHONY: all tests test test-arm soak demo bench fuzz fuzz-quick fuzz-run check-style format deps help clean
-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
