# SPDX-License-Identifier: Apache-2.0
# What is preloaded into the daemon to make calls fail. A sanitizer has its own hold on malloc, so never with one.

SHIM := $(B)/tests/fault/shim.so

$(SHIM): tests/fault/shim.c $(B)/flags
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(CC) -std=gnu17 -D_GNU_SOURCE $(WARNINGS) $(GCC_WARNINGS) -g -O2 -fPIC -shared -fno-builtin -fvisibility=hidden -o $@ $< -ldl

ifndef SAN
tests: $(SHIM)
endif
