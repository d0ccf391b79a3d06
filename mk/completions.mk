# SPDX-License-Identifier: Apache-2.0
# Completions of the shells, made from the tables that the programs parse by.

COMPLETION_TABLES := $(B)/completions/tables
COMPLETIONS := $(B)/completions/bash/gpuipcctl $(B)/completions/bash/gpuipcd \
        $(B)/completions/zsh/_gpuipcctl $(B)/completions/zsh/_gpuipcd
COMPLETION_SOURCES := packaging/completions/generate $(wildcard packaging/completions/*.awk)

.PHONY: completions
completions: $(COMPLETIONS)

$(COMPLETION_TABLES): $(B)/obj/packaging/completions/tables.o $(B)/lib/ctl.a $(B)/lib/client.a $(B)/lib/daemon.a $(B)/lib/proto.a
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(CC) $(ALL_LDFLAGS) -pie -o $@ $^ $(UV_LIBS) $(SYSTEMD_LIBS) $(CJSON_LIBS)

define complete
	@mkdir -p $(@D)
	$(call say,COMPLETE)
	$(Q)packaging/completions/generate $(COMPLETION_TABLES) $(1) $(2) > $@
endef

$(B)/completions/bash/%: packaging/completions/%.bash $(COMPLETION_SOURCES) $(COMPLETION_TABLES)
	$(call complete,$*,bash)
$(B)/completions/zsh/_%: packaging/completions/%.zsh $(COMPLETION_SOURCES) $(COMPLETION_TABLES)
	$(call complete,$*,zsh)
