# SPDX-License-Identifier: Apache-2.0
# make python: build/python/ with a wheel that has the library in it, and a source distribution that uses the system's.

PY := $(B)/python
PYTHON_SOURCES := $(shell find client/python -type f ! -name '*.pyc' ! -path '*/.*_cache/*')

.PHONY: python
python: $(PY)/built

$(PY)/libgpuipc.so.0: $(CLIENT_OBJECTS) $(PROTO_OBJECTS) $(VERSION_SCRIPT)
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(CC) $(ALL_LDFLAGS) -shared -Wl,-z,defs -Wl,-soname,libgpuipc.so.0 $(VERSION_SCRIPT:%=-Wl,--version-script=%) \
		-o $@ $(filter %.o,$^) $(CJSON_LIBS) -Wl,-rpath,'$$ORIGIN'
	$(Q)strip --strip-unneeded $@

$(PY)/built: $(PY)/libgpuipc.so.0 $(PYTHON_SOURCES) LICENSE mk/python
	$(call say,PYTHON)
	$(Q)mk/python $(PY) $(PYTHON) $(CJSON_SHARED)
	@touch $@

# What a sanitizer watches cannot be loaded into an interpreter.
ifndef SAN
tests: python
endif
