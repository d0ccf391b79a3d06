# SPDX-License-Identifier: Apache-2.0
# What every compilation and link is given.

WARNINGS := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition \
        -Wundef -Wpointer-arith -Wwrite-strings -Wvla -Wformat=2 -Wimplicit-fallthrough -Wdate-time
GCC_WARNINGS := -Wlogical-op -Wduplicated-cond

PACKAGES := libuv libcjson libsystemd
PACKAGE_CFLAGS := $(shell $(PKG_CONFIG) --cflags $(PACKAGES) 2>/dev/null)
UV_LIBS = $(shell $(PKG_CONFIG) --libs libuv)
CJSON_LIBS = $(shell $(PKG_CONFIG) --libs libcjson)
SYSTEMD_LIBS = $(shell $(PKG_CONFIG) --libs libsystemd)
CHECK_LIBS = $(shell $(PKG_CONFIG) --libs check)
CRYPTO_LIBS = $(shell $(PKG_CONFIG) --libs libcrypto)

# The CUDA Toolkit's headers are all of it that is needed, and only to build. Without them all is built but CUDA.
CUDA_INCLUDE ?= /usr/local/cuda/include
HAVE_CUDA := $(if $(wildcard $(CUDA_INCLUDE)/cuda.h),1)
CUDA_CFLAGS := $(if $(HAVE_CUDA),-DHAVE_CUDA=1 -isystem $(CUDA_INCLUDE))
ifeq ($(HAVE_CUDA)$(MAKE_RESTARTS)$(filter-out 0,$(MAKELEVEL)),)
$(info no $(CUDA_INCLUDE)/cuda.h: building without CUDA; CUDA_INCLUDE= names another directory)
endif

BASE_CFLAGS := -std=gnu17 -D_GNU_SOURCE -I. -Iinclude $(CUDA_CFLAGS) $(PACKAGE_CFLAGS) -g -fvisibility=hidden -pthread
HARDENING := -fstack-protector-strong -fstack-clash-protection -D_FORTIFY_SOURCE=2

CFLAGS ?= -O2
LDFLAGS ?=
ifeq ($(SAN),address)
SAN_FLAGS := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
HARDENING :=
else ifeq ($(SAN),thread)
SAN_FLAGS := -fsanitize=thread -fno-omit-frame-pointer
HARDENING :=
endif

ALL_CFLAGS := $(BASE_CFLAGS) $(WARNINGS) $(GCC_WARNINGS) $(HARDENING) $(SAN_FLAGS) $(CFLAGS)
ALL_LDFLAGS := -Wl,-z,relro,-z,now,-z,noexecstack -Wl,--as-needed -pthread $(SAN_FLAGS) $(LDFLAGS)

# The fuzzers are built by clang, whose objects lie apart.
FUZZ_CFLAGS := $(BASE_CFLAGS) -Wall -Wextra -Werror -O1 -fno-omit-frame-pointer -fno-sanitize-recover=undefined
FUZZ_SAN := address,undefined

# $(call say,WORD) says in one word what a recipe does; V=1 shows the commands themselves.
ifeq ($(V),1)
Q :=
say :=
else
Q := @
say = @printf '  %-8s %s\n' $(1) $@
endif
