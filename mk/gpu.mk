# SPDX-License-Identifier: Apache-2.0
# make gpu-bundle: build/gpu/, all that the GPU tier needs on a machine with a GPU, Python and libsystemd: what is shipped, the tests, and
# the libraries that may be missing there. tests/gpu/run.sh runs it.

GPU := $(B)/gpu
NVCC ?= $(firstword $(wildcard $(patsubst %/include,%/bin/nvcc,$(CUDA_INCLUDE))) nvcc)
GPU_ARCH ?= sm_90
CUDA_LIB ?= $(patsubst %/include,%/lib64,$(CUDA_INCLUDE))
CHECK_STATIC = -l:libcheck_pic.a -l:libsubunit.a -lm -lrt

GPU_BARE := gpuipcd gpuipcctl libgpuipc.so.0 fault/gpuipcd $(EXAMPLES:$(B)/%=%)
GPU_C_TESTS := $(patsubst %.c,%,$(call buildable,tests/integration/test_*.c))
GPU_AGENTS := agent classic cost
GPU_FILES := $(GPU_BARE) $(GPU_C_TESTS) $(GPU_AGENTS:%=tools/%) $(GPU_AGENTS:%=dry/%) portable/gpuipcctl \
        libgpuipc.so libuv.so.1 libcjson.so.1 cuda/libcudart.so.13 $(if $(HAVE_CUDA),$(FAKES:$(B)/%=%))

library_file = $(realpath $(shell $(CC) -print-file-name=$(1)))
strip_g = $(Q)strip --strip-debug $@
rpath = -Wl,-rpath,'$$ORIGIN$(1)'
define gpu_say
	@mkdir -p $(@D)
	$(call say,LINK)
endef

.PHONY: gpu-bundle
gpu-bundle: $(if $(HAVE_CUDA),$(GPU_FILES:%=$(GPU)/%),gpu-needs-cuda)
	@du -sh $(GPU) | sed 's/^/  /'

.PHONY: gpu-needs-cuda
gpu-needs-cuda:
	$(error make gpu-bundle needs the CUDA Toolkit: $(CUDA_INCLUDE)/cuda.h is not there)

# What gpuipc.torch is measured beside, and what that needs, for the Python there; the tier runs without, too.
GPU_PYTHON ?= 3.12
.PHONY: gpu-wheels
gpu-wheels:
	@test -x $(B)/venv/bin/python3 || { echo 'make gpu-wheels needs the Python of make deps: $(B)/venv is not there' >&2; exit 2; }
	$(call say,PIP)
	$(Q)rm -rf $(GPU)/pypi && mkdir -p $(GPU)/pypi
	$(Q)$(B)/venv/bin/python3 -m pip download --quiet --no-deps --only-binary :all: --python-version $(GPU_PYTHON) \
		--platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
		--dest $(GPU)/pypi tensorsocket==0.0.5 pyzmq==27.3.0 tornado==6.5.2
	$(Q)for wheel in $(GPU)/pypi/*.whl; do $(PYTHON) -m zipfile -e $$wheel $(GPU)/pypi && rm $$wheel; done
	@du -sh $(GPU)/pypi | sed 's/^/  /'

# What is shipped, linked again to find its libraries beside it.
$(GPU)/gpuipcd: $(DAEMON_OBJECTS) $(B)/lib/proto.a
	$(gpu_say)
	$(Q)$(CC) $(ALL_LDFLAGS) -pie -o $@ $^ $(UV_LIBS) $(CJSON_LIBS) $(SYSTEMD_LIBS) $(call rpath)
	$(strip_g)
$(GPU)/fault/gpuipcd: $(FAULT_OBJECTS) $(B)/lib/proto.a
	$(gpu_say)
	$(Q)$(CC) $(ALL_LDFLAGS) -pie -o $@ $^ $(UV_LIBS) $(CJSON_LIBS) $(SYSTEMD_LIBS) $(call rpath,/..)
	$(strip_g)
$(GPU)/libgpuipc.so.0: $(CLIENT_OBJECTS) $(PROTO_OBJECTS) $(VERSION_SCRIPT)
	$(gpu_say)
	$(Q)$(CC) $(ALL_LDFLAGS) -shared -Wl,-z,defs -Wl,-soname,libgpuipc.so.0 $(VERSION_SCRIPT:%=-Wl,--version-script=%) \
		-o $@ $(filter %.o,$^) $(CJSON_LIBS) $(call rpath)
	$(strip_g)
# A copy, not a link: links do not travel everywhere.
$(GPU)/libgpuipc.so: $(GPU)/libgpuipc.so.0
	$(Q)cp $< $@
GPU_LIBRARY = -L$(GPU) -lgpuipc $(call rpath,$(1))
$(GPU)/gpuipcctl: $(CTL_OBJECTS) $(B)/lib/proto.a $(GPU)/libgpuipc.so
	$(gpu_say)
	$(Q)$(CC) $(ALL_LDFLAGS) -pie -o $@ $(CTL_OBJECTS) $(B)/lib/proto.a $(call GPU_LIBRARY) $(CJSON_LIBS)
	$(strip_g)
$(EXAMPLES:$(B)/%=$(GPU)/%): $(GPU)/examples/%: $(B)/obj/client/examples/%.o $(GPU)/libgpuipc.so
	$(gpu_say)
	$(Q)$(CC) $(ALL_LDFLAGS) -pie -o $@ $< $(call GPU_LIBRARY,/..) $(CRYPTO_LIBS)
	$(strip_g)
$(GPU)/portable/gpuipcctl: $(PORTABLE)/gpuipcctl
	@mkdir -p $(@D)
	$(Q)cp $(PORTABLE)/* $(@D)/
	$(strip_g)
$(GPU)/libuv.so.1 $(GPU)/libcjson.so.1:
	@mkdir -p $(@D)
	$(Q)cp $(call library_file,$(@F)) $@
$(GPU)/cuda/libcudart.so.13: $(CUDA_LIB)/libcudart.so.13
	@mkdir -p $(@D)
	$(Q)cp -L $< $@
$(FAKES:$(B)/%=$(GPU)/%): $(GPU)/fake/%: $(B)/fake/%
	@mkdir -p $(@D)
	$(Q)cp $< $@
	$(strip_g)

$(GPU_C_TESTS:%=$(GPU)/%): $(GPU)/tests/integration/%: $(B)/obj/tests/integration/%.o $(B)/lib/tests/integration.a \
                $(B)/lib/support.a $(B)/lib/proto.a $(GPU)/libgpuipc.so
	$(gpu_say)
	$(Q)$(CC) $(ALL_LDFLAGS) -pie -o $@ $(filter %.o,$^) $(filter %.a,$^) $(call GPU_LIBRARY,/../..) $(CHECK_STATIC) $(CJSON_LIBS)
	$(strip_g)

# The tier's own programs, twice: for a GPU (tools/), and for the fakes (dry/).
GPU_CFLAGS = $(BASE_CFLAGS) $(WARNINGS) $(GCC_WARNINGS) $(HARDENING) -O2
$(B)/obj-gpu/%.o: tests/gpu/%.c $(B)/flags
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(GPU_CFLAGS) -fPIE -MMD -MP -c -o $@ $<
$(B)/obj-gpu/kernels.o: tests/gpu/kernels.cu tests/gpu/kernels.h
	@mkdir -p $(@D)
	$(call say,NVCC)
	$(Q)$(NVCC) -arch=$(GPU_ARCH) -O2 -Xcompiler -fPIE -Itests/gpu -c -o $@ $<
-include $(wildcard $(B)/obj-gpu/*.d)

CUDART_STATIC = -L$(CUDA_LIB) -l:libcudart_static.a -ldl -lrt -lpthread
# The driver's own library is wherever the program runs; to link, one that has its names will do.
LINK_CUDA = $(FAKE)/libcuda.so.1
LINK_FAKES = $(FAKE)/libcudart.so.13 $(FAKE)/libcuda.so.1
$(GPU)/tools/agent: $(B)/obj-gpu/agent.o $(B)/obj-gpu/agent_channel.o $(B)/obj-gpu/first_gpu.o $(B)/obj-gpu/kernels.o $(GPU)/libgpuipc.so
	$(gpu_say)
	$(Q)$(CXX) -pie -static-libstdc++ -static-libgcc -o $@ $(filter %.o,$^) $(call GPU_LIBRARY,/..) $(CUDART_STATIC)
	$(strip_g)
$(GPU)/tools/classic: $(B)/obj-gpu/classic.o
	$(gpu_say)
	$(Q)$(CC) -pie -o $@ $< $(CUDART_STATIC)
	$(strip_g)
$(GPU)/tools/cost $(GPU)/dry/cost: $(B)/obj-gpu/cost.o $(B)/obj-gpu/first_gpu.o $(GPU)/libgpuipc.so $(LINK_CUDA)
	$(gpu_say)
	$(Q)$(CC) $(ALL_LDFLAGS) -pie -o $@ $(filter %.o,$^) $(call GPU_LIBRARY,/..) $(LINK_CUDA)
	$(strip_g)
$(GPU)/dry/agent: $(B)/obj-gpu/agent.o $(B)/obj-gpu/agent_channel.o $(B)/obj-gpu/first_gpu.o $(B)/obj-gpu/kernels_host.o $(GPU)/libgpuipc.so $(LINK_FAKES)
	$(gpu_say)
	$(Q)$(CC) $(ALL_LDFLAGS) -pie -o $@ $(filter %.o,$^) $(call GPU_LIBRARY,/..) $(LINK_FAKES)
	$(strip_g)
$(GPU)/dry/classic: $(B)/obj-gpu/classic.o $(LINK_FAKES)
	$(gpu_say)
	$(Q)$(CC) $(ALL_LDFLAGS) -pie -o $@ $< $(LINK_FAKES)
	$(strip_g)
CXX ?= g++
