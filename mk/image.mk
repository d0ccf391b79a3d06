# SPDX-License-Identifier: Apache-2.0
# make image: the daemon's container image, by podman or docker (ENGINE=), from BASE=, called IMAGE=. What is built here goes into it, so
# the base must have this machine's C library or a newer one.

ENGINE ?= podman
IMAGE ?= localhost/gpuipcd
BASE ?= debian:12-slim
STAGE := $(B)/image

.PHONY: stage image
stage: all $(INSTALL_CTL)
	rm -rf $(STAGE)
	$(MAKE) install DESTDIR=$(abspath $(STAGE)) PREFIX=/usr sysconfdir=/etc
	rm -rf $(STAGE)/usr/include $(STAGE)/usr/share/man $(STAGE)/usr/lib/pkgconfig $(STAGE)/usr/lib/libgpuipc.a $(STAGE)/usr/lib/libgpuipc.so

image: stage
	$(ENGINE) build $(if $(filter podman,$(notdir $(ENGINE))),--format docker) --build-arg BASE=$(BASE) -t $(IMAGE) \
		-f packaging/container/Containerfile $(STAGE)
