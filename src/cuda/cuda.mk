# The CUDA backend, which the program has wherever there is an nvcc (NVCC= builds without it), and its kernels emulated
# on the CPU for the tests: EMU names the emulator's folder. CUDA_ARCH: the architectures that get machine code, besides
# PTX for sm_80 and later; the a of 90a enables wgmma (src/cuda/wgmma.cuh).
NVCC ?= $(firstword $(wildcard $(shell command -v nvcc 2>/dev/null) /usr/local/cuda/bin/nvcc))
CUDA_ARCH ?= 90a
CUDA_HOME := $(if $(NVCC),$(patsubst %/bin/nvcc,%,$(realpath $(NVCC))))
CUDA_SRC := $(sort $(wildcard src/ops/*/*_cuda.cu src/fused/*/*_cuda.cu))
CUDA_COMMON_C := src/backend/cuda_backend.c $(addprefix src/cuda/,device_memory.c fp8.c mapped_output.c prelaunch.c)
CUDA_C := $(CUDA_COMMON_C) $(addprefix src/cuda/,borrow.c device.c gemm.c graph.c nccl.c)
EMU := tests/emu
NVCC_FLAGS := -std=c++17 -O3 -lineinfo -Iinclude -Isrc -Xcompiler -fPIC,-Wall,-fvisibility=hidden -diag-suppress 177
PTX := -gencode=arch=compute_80,code=compute_80
MACHINE := $(foreach a,$(CUDA_ARCH),-gencode=arch=compute_$(a),code=[compute_$(a)$(,)sm_$(a)])
TARGETS := $(PTX) $(MACHINE)
ISA_cuda := -DHL_ISA=cuda
ISA_cuda_f32 := -DHL_ISA=cuda_f32 -DHL_CUDA_F32

CUDA_OBJ := $(patsubst %.c,$(BUILD)/cuda-host/%.o,$(CUDA_C)) $(foreach i,cuda cuda_f32,$(BUILD)/$(i)/src/backend/cuda_table.o \
    $(patsubst %.cu,$(BUILD)/$(i)/%.o,$(CUDA_SRC)))
EMU_OBJ := $(patsubst %.c,$(BUILD)/emu/%.o,$(CUDA_COMMON_C) $(EMU)/device.c) $(patsubst %,$(BUILD)/emu/$(EMU)/%.o,emu watch) \
    $(foreach i,cuda cuda_f32,$(BUILD)/emu-$(i)/src/backend/cuda_table.o $(patsubst %.cu,$(BUILD)/emu-$(i)/%.o,$(CUDA_SRC)))

ifeq ($(RACE),1) # for compute-sanitizer's racecheck: src/cuda/named_barrier.cuh, tests/race
NVCC_FLAGS += -DHL_RACECHECK
CUDA_OBJ := $(filter-out %/src/cuda/gemm.o,$(CUDA_OBJ)) $(BUILD)/cuda/tests/race/gemm.o
endif

# the emulator's race detector (tests/emu/watch.cpp), and traps where an address is not aligned or a sum overflows
ifeq ($(EMU_WATCH),1)
EMU_FLAGS := -DEMU_WATCH
EMU_KERNEL_FLAGS := -O1 -g1 -fsanitize=thread,alignment,bounds,signed-integer-overflow -fsanitize-undefined-trap-on-error
endif

# sanitizers and fuzzers test host code: kernels would only cost time
CUDA := $(if $(call on,$(SAN) $(TSAN) $(FUZZ)),,$(NVCC))
CPU_OBJ := $(LIB_OBJ)
HAVE_CUDA := backend.o raw_ops.o raw_linear_ops.o raw_attention_ops.o # objects that depend on CUDA being built in
ifneq ($(CUDA),)
LIB_OBJ += $(CUDA_OBJ)
LIBS += -L$(CUDA_HOME)/lib64 -lcudart_static -ldl -lrt -lstdc++
$(addprefix $(BUILD)/float/src/backend/,$(HAVE_CUDA)): ALL_CFLAGS += -DHL_HAVE_CUDA
$(BUILD)/cuda-host/src/cuda/device.o: ALL_CFLAGS += '-DHL_CUDA_ARCH=$(strip $(CUDA_ARCH))'
endif
all:

$(addprefix $(BUILD)/float/src/backend/,$(HAVE_CUDA)): $(BUILD)/cuda.made-with # with or without CUDA

$(BUILD)/cuda-host/%.o: %.c $(BUILD)/c.made-with $(BUILD)/cuda.made-with
	$(call say,CC $@) mkdir -p $(@D) && $(CC) $(ALL_CFLAGS) -isystem $(CUDA_HOME)/include -c -o $@ $<
$(BUILD)/emu/%.o: %.c $(BUILD)/c.made-with
	$(call say,CC $@) mkdir -p $(@D) && $(CC) $(ALL_CFLAGS) $(EMU_FLAGS) -Itests -c -o $@ $<
$(BUILD)/emu/%.o: %.cpp $(BUILD)/c.made-with
	$(call say,CXX $@) mkdir -p $(@D) && $(CXX) -std=c++17 -O2 -g -fPIC $(EMU_FLAGS) -MMD -MP -c -o $@ $<
define cuda_compile
$$(BUILD)/$(1)/src/backend/%.o: src/backend/%.c $$(BUILD)/c.made-with
	$$(call say,CC $$@) mkdir -p $$(@D) && $$(CC) $$(ALL_CFLAGS) $$(ISA_$(1)) -c -o $$@ $$<
$$(BUILD)/emu-$(1)/src/backend/%.o: src/backend/%.c $$(BUILD)/c.made-with
	$$(call say,CC $$@) mkdir -p $$(@D) && $$(CC) $$(ALL_CFLAGS) $$(ISA_$(1)) -c -o $$@ $$<
$$(BUILD)/$(1)/%.o: %.cu $$(BUILD)/cuda.made-with
	$$(call say,NVCC $$@) mkdir -p $$(@D) && $$(NVCC) $$(NVCC_FLAGS) $$(TARGETS) $$(ISA_$(1)) -MMD -MP -c -o $$@ $$<
$$(BUILD)/emu-$(1)/%.o: %.cu $$(BUILD)/c.made-with
	$$(call say,EMU $$@) mkdir -p $$(@D) && $$(CXX) -x c++ -std=c++17 -O2 -w -fPIC -Iinclude -Isrc \
	    -I$$(EMU)/include -DHL_CUDA_EMU $$(EMU_FLAGS) $$(EMU_KERNEL_FLAGS) $$(ISA_$(1)) -MMD -MP -c -o $$@ $$<
endef
$(foreach i,cuda cuda_f32,$(eval $(call cuda_compile,$(i))))

# Checks that nvcc compiles every kernel, on machines without a GPU: device code only, barely optimised, bf16 as machine
# code and float as PTX. The emulator's build compiles the host code of these files.
CHECK_OBJ := $(patsubst %.c,$(BUILD)/cuda-host/%.o,$(CUDA_C)) $(patsubst %.cu,$(BUILD)/check/%.cubin,$(CUDA_SRC)) \
    $(patsubst %.cu,$(BUILD)/check-f32/%.ptx,$(CUDA_SRC))
QUICK = $(filter -std% -I%,$(NVCC_FLAGS)) -diag-suppress 177 $(if $(findstring --Ofast-compile,$(NVCC_HELP)),-Ofc=max) -MMD -MP
$(BUILD)/check/%.cubin: %.cu $(BUILD)/cuda.made-with
	$(call say,NVCC $@) mkdir -p $(@D) && $(NVCC) $(QUICK) -arch=sm_$(lastword $(CUDA_ARCH)) $(ISA_cuda) -cubin -o $@ $<
$(BUILD)/check-f32/%.ptx: %.cu $(BUILD)/cuda.made-with
	$(call say,NVCC $@) mkdir -p $(@D) && $(NVCC) $(QUICK) -arch=compute_80 $(ISA_cuda_f32) -ptx -o $@ $<
check-cuda: NVCC_HELP := $(if $(filter check-cuda,$(GOALS)),$(if $(NVCC),$(shell $(NVCC) --help)))
check-cuda: $(CHECK_OBJ) ## compile every kernel with nvcc, as a check only

# a library whose "cuda" backend is emulated, for tests/cuda_x.c; `make test-cuda` links them with the real one
EMU_HAVE := $(addprefix $(BUILD)/emu/src/backend/,$(HAVE_CUDA))
$(EMU_HAVE): ALL_CFLAGS += -DHL_HAVE_CUDA
$(BUILD)/libhola-emu.a: $(filter-out $(addprefix %/src/backend/,$(HAVE_CUDA)),$(CPU_OBJ)) $(EMU_HAVE) $(EMU_OBJ)
# the same as a shared library, for the tests of hola.torch's CUDA path
$(BUILD)/libhola-emu.so: $(BUILD)/libhola-emu.a
	$(call say,LD $@) $(CC) $(LDFLAGS) -shared -Wl,-z,defs -o $@ -Wl,--whole-archive $< -Wl,--no-whole-archive $(LIBS) -lstdc++
$(BUILD)/tests/cuda_%: tests/cuda_%.c $(BUILD)/libhola-emu.a
	$(call test_link,,$(BUILD)/libhola-emu.a -lcmocka -lstdc++)
$(BUILD)/gpu-tests/cuda_%: tests/cuda_%.c $(BUILD)/libhola.a
	$(call test_link,,$(BUILD)/libhola.a -lcmocka)
# (with a C++ compiler; sanitizers do not follow fibers)
EMU_TESTS := $(if $(call on,$(SAN) $(TSAN) $(FUZZ)),,$(if $(shell command -v $(CXX)),$(patsubst \
    tests/%.c,$(BUILD)/tests/%,$(sort $(wildcard tests/cuda_*.c)))))
GPU_TESTS := $(patsubst tests/%.c,$(BUILD)/gpu-tests/%,$(sort $(wildcard tests/cuda_*.c)))
gpu-tests: $(GPU_TESTS)
test-cuda: $(GPU_TESTS) ## the CUDA backend on this machine's GPU
	@tests/run.sh $(GPU_TESTS)
sanitize: gpu-tests ## compute-sanitizer's memcheck and racecheck over them
	$(MAKE) --no-print-directory BUILD=$(BUILD)-race RACE=1 gpu-tests
	tools/sanitize.sh $(BUILD) $(BUILD)-race $(JOBS)
.PHONY: gpu-tests test-cuda sanitize check-cuda
