# SPDX-License-Identifier: Apache-2.0
#
#   make                 the daemon, the command, the library, the examples
#   make deps            installs what is missing (Debian 12, as root)
#   make demo            real files passed between processes, shown step by step
#   make check           every test; T='unit integration/deaths' runs a part; SAN=address or SAN=thread
#   make fuzz            five fuzzers, FUZZ_TIME=60 seconds each; FUZZ='codec wire' a part
#   make bench           the figures, with their targets beside them
#   make lint valgrind fuzz-replay
#   make V=1             shows each command
#   make portable        the command and what it needs, to mount into a container (gpuipcctl doctor)
#   make gpu-bundle      the GPU tier, to be carried to a machine with a GPU and run by tests/gpu/run.sh
#   make image           a container image of the daemon; BASE= ENGINE= IMAGE=
#   make python          the package gpuipc: build/python/*.whl, with the library, and *.tar.gz, without
#   make install         DESTDIR= PREFIX=/usr/local; uninstall takes exactly that away
#   make deb rpm         packages, in build/deb and build/rpm
#   make clean           build/ but for what was downloaded; distclean: all of it
#
# Sources are found by wildcard: a new .c in proto/, client/, client/ctl/, client/examples/, daemon/ or tests/*/
# needs no line here.

SHELL := /bin/sh
.DELETE_ON_ERROR:
.SUFFIXES:
.SECONDARY:
.SECONDEXPANSION:
MAKEFLAGS += --no-builtin-rules

ifdef SAN
ifeq ($(filter $(SAN),address thread),)
$(error SAN=$(SAN): give address or thread)
endif
B := build/san-$(SAN)
else
B := build
endif

CC := gcc
CLANG ?= clang
PKG_CONFIG ?= pkg-config
PYTHON ?= /usr/bin/python3
VERSION := $(shell sed -n 's/^.define GPUIPC_VERSION "\(.*\)"/\1/p' include/gpuipc.h)

PREFIX ?= /usr/local
# Where what is installed goes; mk/install has the defaults, which follow from PREFIX.
DIRECTORIES := bindir sbindir libdir includedir mandir sysconfdir unitdir sysusersdir tmpfilesdir catalogdir

# What is installed decides how to build, so the other goals wait for deps in a make of their own.
ifneq ($(filter deps,$(MAKECMDGOALS)),)
OTHER_GOALS := $(filter-out deps,$(MAKECMDGOALS))
.PHONY: deps $(OTHER_GOALS)
deps:
	mk/deps
	$(if $(OTHER_GOALS),+$(MAKE) $(OTHER_GOALS))
$(OTHER_GOALS): deps
	@:
else

include mk/flags.mk
include mk/sources.mk

.PHONY: all tests demo check fuzz fuzz-replay bench lint valgrind install uninstall clean distclean FORCE
.DEFAULT_GOAL := all

all: $(PROGRAMS) $(EXAMPLES) completions

include mk/build.mk
include mk/tests.mk
include mk/fault.mk
include mk/fake.mk
include mk/completions.mk
include mk/packages.mk
include mk/python.mk
include mk/portable.mk
include mk/image.mk
include mk/gpu.mk

demo: all
	tests/demo.sh $(B)

PLACE = DESTDIR='$(DESTDIR)' prefix='$(PREFIX)' $(foreach each,$(DIRECTORIES),$(if $($(each)),$(each)='$($(each))')) mk/install

install: all $(INSTALL_CTL)
	$(Q)$(PLACE) $(B)

uninstall: $(COMPLETIONS)
	$(Q)$(PLACE) --remove $(B)

clean:
	mk/clean

distclean:
	rm -rf build

-include $(DEPENDENCIES)
endif
