# SPDX-License-Identifier: Apache-2.0
"""A step of the tier: its name, the seconds it may take, a generator of rows, and whether it runs only when it is named."""

import collections

Step = collections.namedtuple("Step", "name seconds run named", defaults=(False,))
