"""`server.c answer BYTES` in Python: one selector thread that answers frames and does nothing else.

Prints its port, ends with its standard input. What a broker in Python is slower than this, it
spends on what Kafka means; what this is slower than C is the interpreter's price.
"""

from __future__ import annotations

import selectors
import socket
import sys

_RECEIVE_BYTES = 1 << 16


def serve(answer: bytes) -> None:
    selector = selectors.DefaultSelector()
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    selector.register(listener, selectors.EVENT_READ)
    selector.register(sys.stdin, selectors.EVENT_READ)
    unfinished: dict[int, bytes] = {}
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:
                return
            if key.fileobj is listener:
                sock, _ = listener.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(sock, selectors.EVENT_READ, sock)
                continue
            sock = key.data
            data = sock.recv(_RECEIVE_BYTES)
            if not data:
                selector.unregister(sock)
                sock.close()
                continue
            data = unfinished.pop(key.fd, b"") + data
            at = 0
            while len(data) - at >= 4:
                end = at + 4 + int.from_bytes(data[at : at + 4], "big")
                if end > len(data):
                    break
                at = end
                sock.sendall(answer)
            if at < len(data):
                unfinished[key.fd] = data[at:]


if __name__ == "__main__":
    size = int(sys.argv[1])
    serve((size - 4).to_bytes(4, "big") + bytes(size - 4))
