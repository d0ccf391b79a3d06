# SPDX-License-Identifier: Apache-2.0
# Which sources there are, and what each becomes. A room that is still empty becomes nothing.

objects = $(patsubst %.c,$(B)/obj/%.o,$(1))

# What needs the Toolkit's headers, and is left out without them.
CUDA_SOURCES := $(wildcard client/cuda_*.c client/map_cuda.c client/map_ipc.c \
        daemon/cuda_*.c daemon/backend_cuda*.c daemon/wipe*.c \
        tests/unit/test_cuda_*.c tests/unit/test_client_cuda*.c tests/unit/cuda_*.c \
        tests/unit/test_fake_*.c tests/unit/fake_*.c)
buildable = $(filter-out $(if $(HAVE_CUDA),,$(CUDA_SOURCES)),$(wildcard $(1)))

PROTO_OBJECTS := $(call objects,$(wildcard proto/*.c)) $(B)/obj/proto/interfaces.o
CLIENT_OBJECTS := $(call objects,$(call buildable,client/*.c))
CTL_OBJECTS := $(call objects,$(wildcard client/ctl/*.c client/doctor/*.c))
DAEMON_SOURCES := $(call buildable,daemon/*.c)
DAEMON_OBJECTS := $(call objects,$(DAEMON_SOURCES))
FAULT_OBJECTS := $(patsubst %.c,$(B)/obj-fault/%.o,$(DAEMON_SOURCES))

LIBRARY := $(B)/libgpuipc.so.0
LIBRARY_LINK := $(B)/libgpuipc.so
STATIC_LIBRARY := $(B)/libgpuipc.a
CTL := $(B)/gpuipcctl
DAEMON := $(B)/gpuipcd
FAULT_DAEMON := $(B)/fault/gpuipcd
INSTALL_CTL := $(if $(CTL_OBJECTS),$(B)/install/gpuipcctl)

PROGRAMS := $(if $(wildcard daemon/main.c),$(DAEMON)) $(if $(CTL_OBJECTS),$(CTL)) \
        $(if $(CLIENT_OBJECTS),$(LIBRARY) $(LIBRARY_LINK) $(STATIC_LIBRARY))
EXAMPLES := $(patsubst client/examples/%.c,$(B)/examples/%,$(call buildable,client/examples/*.c))

# Tests. A file test_*.c or bench_*.c is a program; any other .c beside it is linked into all of that room.
TEST_ROOMS := unit pair channel integration fault
TEST_SOURCES := $(foreach room,$(TEST_ROOMS),$(call buildable,tests/$(room)/test_*.c))
TEST_PROGRAMS := $(patsubst %.c,$(B)/%,$(TEST_SOURCES) $(wildcard tests/support/test_*.c))
HELPERS = $(call objects,$(filter-out tests/$(1)/test_% tests/$(1)/bench_%,$(call buildable,tests/$(1)/*.c)))

LOAD_PROGRAMS := $(patsubst %.c,$(B)/%,$(wildcard tests/systemd/*.c))

FUZZERS := $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_PROGRAMS := $(FUZZERS:%=$(B)/fuzz/fuzz_%)
REPLAY_PROGRAMS := $(FUZZERS:%=$(B)/tests/fuzz/replay_%)

BENCH_PROGRAMS := $(patsubst %.c,$(B)/%,$(wildcard tests/bench/bench_*.c))

# What a test links is read from what it includes.
including = $(shell mk/uses '$(1)' $(2))
ALL_TESTS := $(TEST_SOURCES) $(wildcard tests/fuzz/fuzz_*.c tests/support/test_*.c tests/bench/bench_*.c)
DAEMON_TESTS := $(call including,daemon/,$(ALL_TESTS)) $(wildcard tests/pair/test_*.c)
CLIENT_TESTS := $(filter-out $(call including,client/(ctl|doctor)/,$(ALL_TESTS)),$(call including,client/,$(ALL_TESTS))) \
        $(wildcard tests/unit/test_client_*.c tests/pair/test_*.c)
CTL_TESTS := $(call including,client/(ctl|doctor)/,$(ALL_TESTS)) $(wildcard tests/unit/test_ctl_*.c)
PUBLIC_TESTS := $(call including,(include/)?gpuipc\.h,$(ALL_TESTS))
LIBRARY_TESTS := $(filter-out $(DAEMON_TESTS) $(CLIENT_TESTS) $(CTL_TESTS),$(PUBLIC_TESTS))

DEPENDENCIES := $(shell find $(B)/obj $(B)/obj-fault $(B)/fuzz/obj -name "*.d" 2>/dev/null)
