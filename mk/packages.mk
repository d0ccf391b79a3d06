# SPDX-License-Identifier: Apache-2.0
# make deb, make rpm: packages, made in copies of the source under build/.

.PHONY: deb rpm
deb: $(B)/deb/built
rpm: $(B)/rpm/built

# What packages are made of; a change in any makes them anew.
PACKAGED := $(shell find Makefile LICENSE README.md client daemon include mk packaging proto systemd -type f ! -name '*.pyc' ! -path '*/.*_cache/*')

$(B)/deb/built: $(PACKAGED)
	mk/package deb $(@D)
	@touch $@
$(B)/rpm/built: $(PACKAGED)
	mk/package rpm $(@D)
	@touch $@
