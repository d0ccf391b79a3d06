# SPDX-License-Identifier: Apache-2.0
# How sources become objects, and objects the daemon, the library and the command.

# Objects depend on the flags they were compiled with.
$(B)/flags: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' '$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS)' | cmp -s - $@ || \
		printf '%s\n' '$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS)' > $@
FORCE:

$(B)/obj/%.o: %.c $(B)/flags
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(ALL_CFLAGS) $(PIC) $(DEFINES) -MMD -MP -c -o $@ $<

PIC = $(if $(filter $(B)/obj/proto/% $(B)/obj/client/%,$@),-fPIC,-fPIE)

$(B)/obj-fault/%.o: %.c $(B)/flags
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(ALL_CFLAGS) -fPIE -DGPUIPC_FAULT -MMD -MP -c -o $@ $<

# The text of the interface definitions, byte for byte, as C.
$(B)/proto/interfaces.c: proto/io.gpuipc.Broker.varlink proto/org.varlink.service.varlink
	@mkdir -p $(@D)
	$(call say,EMBED)
	$(Q)mk/embed $^ > $@

$(B)/obj/proto/interfaces.o: $(B)/proto/interfaces.c $(B)/flags
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(ALL_CFLAGS) -fPIC -MMD -MP -c -o $@ $<

define archive
	@mkdir -p $(@D)
	@rm -f $@
	$(Q)$(AR) rcs $@ $(filter %.o,$^)
endef
AR ?= ar

$(B)/lib/proto.a: $(PROTO_OBJECTS)
	$(archive)
$(B)/lib/client.a: $(CLIENT_OBJECTS)
	$(archive)
$(B)/lib/ctl.a: $(filter-out %/main.o,$(CTL_OBJECTS))
	$(archive)
$(B)/lib/daemon.a: $(filter-out %/main.o,$(DAEMON_OBJECTS))
	$(archive)
$(B)/lib/support.a: $(call HELPERS,support)
	$(archive)

$(DAEMON): $(DAEMON_OBJECTS) $(B)/lib/proto.a
	$(call say,LINK)
	$(Q)$(CC) $(ALL_LDFLAGS) -pie -o $@ $^ $(UV_LIBS) $(CJSON_LIBS) $(SYSTEMD_LIBS)

$(FAULT_DAEMON): $(FAULT_OBJECTS) $(B)/lib/proto.a
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(CC) $(ALL_LDFLAGS) -pie -o $@ $^ $(UV_LIBS) $(CJSON_LIBS) $(SYSTEMD_LIBS)

VERSION_SCRIPT := $(wildcard client/libgpuipc.map)
$(LIBRARY): $(CLIENT_OBJECTS) $(PROTO_OBJECTS) $(VERSION_SCRIPT)
	$(call say,LINK)
	$(Q)$(CC) $(ALL_LDFLAGS) -shared -Wl,-z,defs -Wl,-soname,libgpuipc.so.0 $(VERSION_SCRIPT:%=-Wl,--version-script=%) \
		-o $@ $(filter %.o,$^) $(CJSON_LIBS)

$(LIBRARY_LINK): $(LIBRARY)
	$(Q)ln -sf libgpuipc.so.0 $@

# One object whose inner names are local, so that they cannot collide with a program's.
$(STATIC_LIBRARY): $(CLIENT_OBJECTS) $(PROTO_OBJECTS)
	@mkdir -p $(B)/lib
	$(call say,LINK)
	$(Q)$(LD) -r -o $(B)/lib/libgpuipc.o $^
	$(Q)objcopy --localize-hidden $(B)/lib/libgpuipc.o
	@rm -f $@
	$(Q)$(AR) rcs $@ $(B)/lib/libgpuipc.o
LD ?= ld

LINK_LIBRARY = -L$(B) -lgpuipc -Wl,-rpath,'$$ORIGIN$(1)'

$(CTL): $(CTL_OBJECTS) $(B)/lib/proto.a $(LIBRARY_LINK)
	$(call say,LINK)
	$(Q)$(CC) $(ALL_LDFLAGS) -pie -o $@ $(CTL_OBJECTS) $(B)/lib/proto.a $(call LINK_LIBRARY) $(CJSON_LIBS)

$(B)/install/gpuipcctl: $(CTL)
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(CC) $(ALL_LDFLAGS) -pie -o $@ $(CTL_OBJECTS) $(B)/lib/proto.a -L$(B) -lgpuipc $(CJSON_LIBS)

$(EXAMPLES): $(B)/examples/%: $(B)/obj/client/examples/%.o $(LIBRARY_LINK)
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(CC) $(ALL_LDFLAGS) -pie -o $@ $< $(call LINK_LIBRARY,/..) $(CRYPTO_LIBS)
