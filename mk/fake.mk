# SPDX-License-Identifier: Apache-2.0
# Libraries that take the place of NVIDIA's where there is no GPU. Programs of any kind load them, so never with a sanitizer.

FAKE := $(B)/fake
FAKES := $(if $(HAVE_CUDA),$(FAKE)/libcuda.so.1 $(FAKE)/libcudart.so.13 $(FAKE)/libnvidia-ml.so.1)

fake_objects = $(patsubst %,$(B)/obj-fake/%.o,call entries script script_parse books $(1))

$(B)/obj-fake/%.o: tests/fake/%.c $(B)/flags
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(BASE_CFLAGS) $(WARNINGS) $(GCC_WARNINGS) $(HARDENING) -O2 -fPIC -MMD -MP -c -o $@ $<

define link_fake
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(CC) -shared -pthread -Wl,-z,defs -Wl,-soname,$(@F) -Wl,--version-script=$(filter %.map,$^) -o $@ $(filter %.o,$^) -ldl
endef

FAKE_DRIVER_OBJECTS := $(call fake_objects,process context memory virtual classic copy stream stream_work event pinned pointer device \
                driver_error errors)
$(FAKE)/libcuda.so.1: tests/fake/cuda.map $(FAKE_DRIVER_OBJECTS)
	$(link_fake)
# As they were before the functions that tests/fake/cuda_NAME.map leaves out.
OLD_FAKES := $(FAKE)/old/libcuda.so.1 $(FAKE)/older/libcuda.so.1
$(OLD_FAKES): $(FAKE)/%/libcuda.so.1: tests/fake/cuda_%.map $(FAKE_DRIVER_OBJECTS)
	$(link_fake)
$(FAKE)/libcudart.so.13: tests/fake/cuda.map $(call fake_objects,runtime errors)
	$(link_fake)
$(FAKE)/libnvidia-ml.so.1: tests/fake/nvml.map $(call fake_objects,nvml)
	$(link_fake)

.PHONY: fake
fake: $(FAKES)
tests: $(FAKES) $(if $(FAKES),$(OLD_FAKES))

-include $(wildcard $(B)/obj-fake/*.d)
