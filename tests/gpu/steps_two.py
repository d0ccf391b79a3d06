# SPDX-License-Identifier: Apache-2.0
"""Two GPUs: a buffer on either, opened by processes that see them hidden, swapped or alone."""

from daemon import wait_for
from rig import GIB, HANDLES, MIB
from step import Step

VISIBLE = "CUDA_VISIBLE_DEVICES"


def views(owner, uuids):
    """(name, what the opener sees, the device it makes current first, over another GPU or not)"""
    other = 1 - owner
    return (
        ("both seen", None, None, False),
        ("both seen, the other current", None, other, True),
        ("swapped", "1,0", None, False),
        ("swapped, the other current", "1,0", 1 - other, True),
        ("its owner alone", uuids[owner], None, False),
        ("its owner hidden", uuids[other], None, True),
    )


def two(rig):
    daemon = rig.daemon()
    devices = daemon.status()["devices"]
    uuids = [device["uuid"] for device in devices]
    yield "GPUs that the daemon has", len(devices), "2", len(devices) == 2
    size = 4 * MIB if rig.dry else GIB
    for handle in HANDLES:
        for owner in (0, 1):
            maker = rig.agent(daemon.socket)
            maker.make("t", size, handle, device=uuids[owner], name="two", seed=31)
            for name, seen, current, peer in views(owner, uuids):
                environment = {VISIBLE: seen} if seen else {}
                user = rig.agent(daemon.socket, environment=environment)
                if current is not None:
                    user.ask("device", current)
                user.ask("open", "t", "two", "rw")
                is_peer, ordinal = map(int, user.ask("map", "t"))
                bad = user.count("differ", "t", 31)
                rate = int(user.ask("rate", "t")[0]) / 1e9
                yield (f"{handle} on GPU {owner}, opened with {name}", f"{bad} words differ, is_peer {is_peer}, by its GPU {ordinal}, "
                       f"read at {rate:.0f} GB/s", f"0, is_peer {int(peer)}", bad == 0 and is_peer == int(peer))
                user.end()
            maker.end()
            wait_for(lambda: daemon.status()["buffers"] == 0, "an empty ledger")
    rig.stop(daemon)


STEPS = [Step("two", 300, two)]
