# make install: the program, the library, the manual, completions for three shells, and the bundled models.
# libdir is where libraries go (Debian: lib/x86_64-linux-gnu); examples/ are documentation.
LIBDIR ?= lib
SHARE := share/man/man1/hola.1 share/bash-completion/completions/hola share/zsh/site-functions/_hola \
    share/fish/vendor_completions.d/hola.fish
FILES := bin/hola $(addprefix $(LIBDIR)/,libhola.a libhola.so.0 libhola.so pkgconfig/hola.pc) include/hola.h \
    include/hola.hpp include/hola_ops.h $(SHARE)
MODELS := $(notdir $(patsubst %/config.json,%,$(wildcard models/*/config.json)))
to = $(DESTDIR)$(PREFIX)
install: all $(BUILD)/libhola.so.0 ## install into DESTDIR and PREFIX
	install -d $(addprefix $(to)/,bin $(LIBDIR)/pkgconfig include $(dir $(SHARE)))
	install $(BUILD)/hola $(to)/bin/
	install -m 644 $(BUILD)/libhola.a $(BUILD)/libhola.so.0 $(to)/$(LIBDIR)/
	ln -sf libhola.so.0 $(to)/$(LIBDIR)/libhola.so
	install -m 644 include/hola.h include/hola.hpp include/hola_ops.h $(to)/include/
	install -m 644 man/hola.1 $(to)/share/man/man1/
	install -m 644 completions/hola.bash $(to)/share/bash-completion/completions/hola
	install -m 644 completions/hola.zsh $(to)/share/zsh/site-functions/_hola
	install -m 644 completions/hola.fish $(to)/share/fish/vendor_completions.d/
	for m in $(MODELS); do install -d $(to)/share/hola/models/$$m && \
	    install -m 644 models/$$m/* $(to)/share/hola/models/$$m/ || exit 1; done
	$(if $(MODELS),install -m 644 models/README.md $(to)/share/hola/models/)
	version=$$(sed -n 's/^.define HOLA_VERSION "\(.*\)"/\1/p' include/hola.h) && \
	    sed "s|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$$version|; s|@LIBS@|$(strip $(LIBS))|" hola.pc.in \
	    >$(to)/$(LIBDIR)/pkgconfig/hola.pc
uninstall: ## remove what install wrote
	rm -f $(addprefix $(to)/,$(FILES))
	rm -rf $(addprefix $(to)/share/hola/models/,$(MODELS) README.md)
.PHONY: install uninstall
