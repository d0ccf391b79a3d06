# SPDX-License-Identifier: Apache-2.0
"""A step of the tier: its name, the seconds it may take, and a generator of rows."""

import collections

Step = collections.namedtuple("Step", "name seconds run")
