# The Python package (python/hola). Its library and program need nothing but glibc: jansson comes along beside the
# library and is linked into the program, libarchive, libedit and MPI are left out, libgcc and libstdc++ are static.
WHEEL := $(BUILD)/wheel
WHEEL_CFLAGS = $(filter-out -DHL_HAVE_LIBARCHIVE -DHL_HAVE_LIBEDIT -DHL_HAVE_MPI,$(ALL_CFLAGS))
WHEEL_LIB_OBJ := $(filter-out %/src/data/stream.o,$(LIB_OBJ)) $(WHEEL)/src/data/stream.o
WHEEL_CLI_OBJ := $(patsubst %.c,$(WHEEL)/%.o,$(sort $(wildcard src/cli/*.c)))
WHEEL_LIBS := $(patsubst -lstdc++,-Wl$(,)-Bstatic -lstdc++ -Wl$(,)-Bdynamic,$(filter-out -ljansson -larchive,$(LIBS)))
WHEEL_LINK := -s -static-libgcc
# Debian's libjansson.a is not position-independent: good enough for a program that is not either.
JANSSON_STATIC = $(or $(filter /%,$(shell $(CC) -print-file-name=libjansson.a)),-ljansson)
PYTHON ?= python3

$(WHEEL)/%.o: %.c
	$(call say,CC $@) mkdir -p $(@D) && $(CC) $(WHEEL_CFLAGS) -c -o $@ $<
$(WHEEL)/libhola.so: $(WHEEL_LIB_OBJ)
	$(call say,LD $@) mkdir -p $(@D) && $(CC) $(LDFLAGS) $(WHEEL_LINK) -shared -Wl,-soname,libhola.so.0 -Wl,-z,defs \
	    '-Wl,-rpath,$$ORIGIN' -Wl,--enable-new-dtags -o $@ $^ -ljansson $(WHEEL_LIBS)
$(WHEEL)/libjansson.so.4: | $(WHEEL)/libhola.so
	@cp -L "$$($(CC) -print-file-name=libjansson.so.4)" $@
$(WHEEL)/hola: $(WHEEL_CLI_OBJ) $(WHEEL_LIB_OBJ)
	$(call say,LD $@) $(CC) $(LDFLAGS) $(WHEEL_LINK) -no-pie -o $@ $^ $(JANSSON_STATIC) $(WHEEL_LIBS)
$(WHEEL)/src/cli/cache_view_page.o: src/cli/cache_view.html

test: $(if $(call on,$(SAN) $(TSAN) $(FUZZ)),,$(BUILD)/libhola.so.0)# for tests/test_python.sh
wheel-files: $(WHEEL)/libhola.so $(WHEEL)/libjansson.so.4 $(WHEEL)/hola
wheel: ## build the Python package as a wheel, in dist/
	cd python && $(PYTHON) -c 'import build_hola; print("dist/" + build_hola.build_wheel("../dist"))'
python-test: ## build, install and test the Python package in fresh environments; PYTHONS="python3.9 python3.13"
	PYTHON=$(PYTHON) tests/python/install.sh $(PYTHONS)
.PHONY: wheel-files wheel python-test
