# SPDX-License-Identifier: Apache-2.0
# make portable: a directory with the command and what it needs beside libc (2.34), to be mounted into any container.
# Where there is a static cJSON (CJSON_LIBS=/there/libcjson.a), it is the command alone.

PORTABLE := $(B)/portable
CJSON_SHARED = $(if $(filter %.a,$(CJSON_LIBS)),,$(shell $(CC) -print-file-name=libcjson.so.1))

.PHONY: portable
portable: $(PORTABLE)/gpuipcctl

$(PORTABLE)/gpuipcctl: $(CTL_OBJECTS) $(B)/lib/client.a $(B)/lib/proto.a
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(CC) $(ALL_LDFLAGS) -pie -o $@ $^ $(CJSON_LIBS) -Wl,-rpath,'$$ORIGIN'
	$(Q)$(if $(CJSON_SHARED),cp -L $(CJSON_SHARED) $(@D)/)

tests: portable
