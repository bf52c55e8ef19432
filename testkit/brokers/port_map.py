"""A TCP port map, as `docker run -p` makes one: what connects to one port arrives at another."""

from __future__ import annotations

import contextlib
import socket
import threading


class PortMap:
    """Listens on a free port of 127.0.0.1 and passes all bytes on; counts connections and bytes."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0
        self.bytes_in = 0
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> PortMap:
        self._threads[0].start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._shut(self._listener)
        self._threads[0].join()
        for sock in self._sockets:
            self._shut(sock)
        for thread in self._threads[1:]:
            thread.join()
        for sock in [self._listener, *self._sockets]:
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _peer = self._listener.accept()
            except OSError:
                return
            self._sockets.append(client)
            try:
                broker = socket.create_connection(self._target)
            except OSError:
                self._shut(client)  # as the engine does when nobody listens inside
                continue
            self._sockets.append(broker)
            self.connections += 1
            for source, sink in ((client, broker), (broker, client)):
                thread = threading.Thread(target=self._pass, args=(source, sink), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        is_inwards = sink.getpeername() == self._target
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if is_inwards:
                    self.bytes_in += len(data)
                sink.sendall(data)
        self._shut(sink)

    @staticmethod
    def _shut(sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
