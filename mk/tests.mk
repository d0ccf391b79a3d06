# SPDX-License-Identifier: Apache-2.0
# Test programs, fuzzers and benchmarks, and the targets that run them.

# $(call needs,SOURCE): the archives a test of that name links, uppermost first.
room = $(patsubst %/,%,$(dir $(1)))
needs = $(if $(filter tests/support,$(call room,$(1))),,$(B)/lib/$(call room,$(1)).a) $(B)/lib/support.a \
        $(if $(filter $(1),$(CTL_TESTS)),$(B)/lib/ctl.a) \
        $(if $(filter $(1),$(DAEMON_TESTS)),$(B)/lib/daemon.a) \
        $(if $(filter $(1),$(CLIENT_TESTS) $(CTL_TESTS)),$(B)/lib/client.a) \
        $(B)/lib/proto.a \
        $(if $(filter $(1),$(LIBRARY_TESTS)),$(LIBRARY_LINK))

$(B)/lib/tests/%.a: $$(call HELPERS,$$*)
	$(archive)

TEST_LIBS = $(if $(filter $(LIBRARY_LINK),$^),$(call LINK_LIBRARY,/../..)) \
        $(CHECK_LIBS) $(if $(filter %/daemon.a,$^),$(UV_LIBS) $(SYSTEMD_LIBS)) $(CJSON_LIBS)

define link_test
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(CC) $(ALL_LDFLAGS) -pie -o $@ $(filter %.o,$^) $(filter %.a,$^) $(TEST_LIBS)
endef

$(TEST_PROGRAMS) $(BENCH_PROGRAMS): $(B)/%: $(B)/obj/%.o $$(call needs,$$*.c)
	$(link_test)

# What a booted machine runs, linked as what is installed there.
$(LOAD_PROGRAMS): $(B)/%: $(B)/obj/%.o $(LIBRARY_LINK)
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(CC) $(ALL_LDFLAGS) -pie -o $@ $< -L$(B) -lgpuipc

# A fuzzer twice: by clang with libFuzzer, and by gcc with a main that runs files.
$(B)/fuzz/obj/%.o: %.c $(B)/flags
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CLANG) $(FUZZ_CFLAGS) -fsanitize=fuzzer-no-link,$(FUZZ_SAN) -MMD -MP -c -o $@ $<

$(B)/fuzz/obj/proto/interfaces.o: $(B)/proto/interfaces.c
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CLANG) $(FUZZ_CFLAGS) -fsanitize=fuzzer-no-link,$(FUZZ_SAN) -c -o $@ $<

fuzz_objects = $(patsubst $(B)/obj/%,$(B)/fuzz/obj/%,$(1))
$(B)/fuzz/lib/proto.a: $(call fuzz_objects,$(PROTO_OBJECTS))
	$(archive)
$(B)/fuzz/lib/client.a: $(call fuzz_objects,$(CLIENT_OBJECTS))
	$(archive)
$(B)/fuzz/lib/daemon.a: $(call fuzz_objects,$(filter-out %/main.o,$(DAEMON_OBJECTS)))
	$(archive)

FUZZ_LIBS = $(UV_LIBS) $(SYSTEMD_LIBS) $(CJSON_LIBS)
FUZZ_HELPERS := $(call objects,$(filter-out tests/fuzz/fuzz_% tests/fuzz/replay.c,$(wildcard tests/fuzz/*.c)))
fuzz_needs = $(if $(filter tests/fuzz/fuzz_$(1).c,$(DAEMON_TESTS)),$(B)/$(2)lib/daemon.a) \
        $(if $(filter tests/fuzz/fuzz_$(1).c,$(CLIENT_TESTS)),$(B)/$(2)lib/client.a) $(B)/$(2)lib/proto.a

$(FUZZ_PROGRAMS): $(B)/fuzz/fuzz_%: $(B)/fuzz/obj/tests/fuzz/fuzz_%.o $(call fuzz_objects,$(FUZZ_HELPERS)) \
                $$(call fuzz_needs,$$*,fuzz/)
	$(call say,LINK)
	$(Q)$(CLANG) -fsanitize=fuzzer,$(FUZZ_SAN) -g -pthread -o $@ $^ $(FUZZ_LIBS)

$(REPLAY_PROGRAMS): $(B)/tests/fuzz/replay_%: $(B)/obj/tests/fuzz/fuzz_%.o $(B)/obj/tests/fuzz/replay.o \
                $(FUZZ_HELPERS) $$(call fuzz_needs,$$*)
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(CC) $(ALL_LDFLAGS) -pie -o $@ $^ $(FUZZ_LIBS)

$(B)/obj/tests/fuzz/fuzz_%.o: DEFINES = -Wno-missing-prototypes

tests: all $(INSTALL_CTL) $(TEST_PROGRAMS) $(LOAD_PROGRAMS) $(REPLAY_PROGRAMS) $(if $(wildcard daemon/main.c),$(FAULT_DAEMON))

T ?=
check: tests
	tests/run --build $(B) $(T)

lint: all $(INSTALL_CTL)
	tests/run --build $(B) lint

valgrind: tests
	tests/run --build $(B) valgrind

fuzz-replay: $(REPLAY_PROGRAMS)
	tests/run --build $(B) fuzz

FUZZ_TIME ?= 60
FUZZ ?= $(FUZZERS)
fuzz: $(FUZZ:%=$(B)/fuzz/fuzz_%)
	tests/fuzz/run $(B)/fuzz $(FUZZ_TIME) $(FUZZ)

bench: all $(BENCH_PROGRAMS)
	tests/bench/run $(B)
