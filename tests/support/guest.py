# SPDX-License-Identifier: Apache-2.0
"""A client that comes back after a restart of the daemon, by hand, and knows what its buffers must hold. Standard library only."""

import hashlib
import os
import random

from rawclient import RawClient


def digest(fd, size):
    return hashlib.sha256(os.pread(fd, size, 0)).hexdigest()


class Guest:
    """One session over however many connections; `leases` maps a lease to the buffer's id."""

    def __init__(self, path, seed=0):
        self.path, self.random = path, random.Random(seed)
        self.leases, self.digests, self.sizes, self.mapped = {}, {}, {}, {}
        self.client = RawClient(path)
        try:
            self.token = self.call("GetStatus").get("resume_token")
        except BaseException:
            self.client.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def leave(self):
        """Says goodbye to all it holds."""
        for lease in list(self.leases):
            self.release(lease)
        self.close()

    def close(self):
        self.client.close()
        for fd in self.mapped.values():
            os.close(fd)
        self.mapped = {}

    def call(self, method, parameters=None, **members):
        return self.client.call(method, parameters, **members)

    def take(self, granted):
        """Notes a lease that was granted, and its descriptor."""
        buffer = granted["buffer"]["id"]
        self.leases[granted["lease"]] = buffer
        self.sizes[buffer] = granted["buffer"]["size"]
        self.mapped[granted["lease"]] = self.client.fds.pop()
        return granted

    def allocate(self, size=None, **parameters):
        size = size or self.random.randint(1, 20000)
        granted = self.take(self.call("Allocate", {"size": size, **parameters}))
        data = self.random.randbytes(size)
        os.pwrite(self.mapped[granted["lease"]], data, 0)
        self.digests[granted["buffer"]["id"]] = hashlib.sha256(data).hexdigest()
        return granted

    def open(self, **parameters):
        return self.take(self.call("Open", parameters))

    def release(self, lease):
        self.forget(lease)
        self.call("Release", {"lease": lease})

    def forget(self, lease):
        del self.leases[lease]
        os.close(self.mapped.pop(lease))

    def reconnect(self, path=None):
        self.client.close()
        self.client = RawClient(path or self.path)

    def resume(self, leases=None, token=None, **parameters):
        """On a new connection: the reply. What it does not list is forgotten."""
        self.reconnect()
        reply = self.call("Resume", {"token": token or self.token, "leases": list(self.leases) if leases is None else leases,
                                     **parameters})
        self.token = reply["resume_token"]
        for lease in set(self.leases) - {lease["id"] for lease in reply["leases"]}:
            self.forget(lease)
        return reply

    def check(self):
        """Every buffer it holds: what is mapped and what the daemon hands out now are the bytes that were written."""
        for lease, buffer in self.leases.items():
            if buffer not in self.digests:
                continue
            if digest(self.mapped[lease], self.sizes[buffer]) != self.digests[buffer]:
                raise AssertionError(f"{buffer}: the mapped bytes changed")
            granted = self.call("Open", {"buffer": buffer, "access": "ro"})
            fd = self.client.fds.pop()
            try:
                if digest(fd, self.sizes[buffer]) != self.digests[buffer]:
                    raise AssertionError(f"{buffer}: the bytes handed out now are others")
            finally:
                os.close(fd)
            self.call("Release", {"lease": granted["lease"]})
