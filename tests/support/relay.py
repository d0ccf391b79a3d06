# SPDX-License-Identifier: Apache-2.0
"""Who stands between clients and a daemon, passes on what either says with its descriptors, and puts other words in the daemon's mouth.

    with Relay(path, daemon.socket, {b'"version":"0.1.0"': b'"version":"9.9.9"'}): ...
"""

import os
import selectors
import socket
import threading

FDS_MAX = 253


class Relay:
    """Words are replaced where they lie within one message of the daemon's."""

    def __init__(self, path, daemon, words):
        self.daemon, self.words = daemon, words
        self.replaced = 0
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(path)
        os.chmod(path, 0o666)
        self.server.listen()
        self.stop_fd, self.stopped_fd = os.pipe()
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.server, selectors.EVENT_READ, self.accept)
        self.selector.register(self.stop_fd, selectors.EVENT_READ, self.stop)
        self.running = True
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.stopped_fd)
        self.thread.join()
        for key in list(self.selector.get_map().values()):
            if key.fileobj != self.stop_fd:
                key.fileobj.close()
        os.close(self.stop_fd)
        self.selector.close()

    def run(self):
        while self.running:
            for key, _ in self.selector.select():
                if key.fileobj in self.selector.get_map():  # not ended meanwhile, with its other end
                    key.data()

    def stop(self):
        self.running = False

    def accept(self):
        client, daemon = self.server.accept()[0], socket.socket(socket.AF_UNIX)
        daemon.connect(self.daemon)
        self.selector.register(client, selectors.EVENT_READ, lambda: self.pass_on(client, daemon, {}))
        self.selector.register(daemon, selectors.EVENT_READ, lambda: self.pass_on(daemon, client, self.words))

    def pass_on(self, source, target, words):
        data, fds, _, _ = socket.recv_fds(source, 1 << 18, FDS_MAX)
        for said, told in words.items():
            self.replaced += data.count(said)
            data = data.replace(said, told)
        if data:
            socket.send_fds(target, [data], fds)
        for fd in fds:
            os.close(fd)
        if not data:
            for end in (source, target):
                self.selector.unregister(end)
                end.close()
