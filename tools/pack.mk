# make pack-cuda: packs the program, the tests of tests/cuda_x.c and the benchmarks for a GPU machine that has neither
# compiler nor libraries: a folder with small programs, one libhola.so with all kernels, and the libraries it needs.
# `tar xf hola-cuda.tar.xz && hola-cuda/report.sh OUT` on that machine runs the tests and measures speed.
PACK := $(BUILD)/hola-cuda
PACK_BENCH := attention_cuda context fp8 gdn gla kda lookup pointwise streams
PACK_SRC := $(sort $(wildcard tests/cuda_*.c)) $(PACK_BENCH:%=bench/bench_%.c) src/cli/main.c
pack_name = $(if $(filter %/main.c,$(1)),hola,$(basename $(notdir $(1))))
PACK_NAMES := $(foreach f,$(PACK_SRC),$(call pack_name,$(f)))
PACK_OBJ := $(patsubst %.c,$(BUILD)/pack/%.o,$(PACK_SRC))
$(BUILD)/pack/%.o: %.c tools/pack.h $(BUILD)/c.made-with
	$(call say,CC $@) mkdir -p $(@D) && $(CC) $(ALL_CFLAGS) -Itests -DPACK_MAIN=pack_$(call pack_name,$<) -include tools/pack.h -c -o $@ $<
$(PACK)/libhola.so: $(PACK_OBJ) $(filter-out %/main.o,$(call obj,float,$(CLI_SRC))) $(LIB_OBJ)
	$(call say,LD $@) mkdir -p $(@D) && $(CC) $(LDFLAGS) -s -shared -Wl,-soname,libhola.so -Wl,-z,defs \
	    '-Wl,-rpath,$$ORIGIN/lib' -o $@ $^ $(LIBS) $(CLI_LIBS) -lcmocka
$(PACK)/pack: tools/pack.c $(PACK)/libhola.so
	$(call say,LD $@) $(CC) $(ALL_CFLAGS) -s '-Wl,-rpath,$$ORIGIN:$$ORIGIN/lib' -Wl,--no-as-needed -o $@ $< $(PACK)/libhola.so -ldl
# (except glibc's own libraries, which the machine provides)
pack-cuda: $(PACK)/pack tools/report_cuda.sh tests/run.sh ## program, GPU tests and benchmarks in one archive, for a GPU machine
	$(if $(CUDA),,$(error pack-cuda: needs nvcc))
	rm -rf $(PACK)/lib && mkdir -p $(PACK)/lib && for p in $(PACK_NAMES); do ln -sf pack $(PACK)/$$p; done
	ldd $(PACK)/libhola.so | awk '$$3 ~ /^\// && $$1 !~ /^(libc|libm|libdl|librt|libpthread|libgcc_s)\.so/ { print $$3 }' | \
	    xargs -I{} cp -L {} $(PACK)/lib/
	cp tools/report_cuda.sh $(PACK)/report.sh && cp tests/run.sh $(PACK)/
	tar -C $(BUILD) -cf - $(notdir $(PACK)) | xz -6 -T0 >$(BUILD)/hola-cuda.tar.xz && ls -l $(BUILD)/hola-cuda.tar.xz
.PHONY: pack-cuda
