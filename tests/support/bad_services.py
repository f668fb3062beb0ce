"""Services that fail as services fail, for whoever has to get over it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager


def free_port() -> int:
    """A port on which nothing listens."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def nobody() -> Iterator[str]:
    """An address where nothing listens."""
    yield f"http://127.0.0.1:{free_port()}"


def answering(answer: bytes | None) -> Callable[[], object]:
    """A server that gives this answer to every request, or none at all, as long as the test lasts."""

    @contextmanager
    def serve() -> Iterator[str]:
        with closing(socket.create_server(("127.0.0.1", 0))) as listening:
            over = threading.Event()

            def accept() -> None:
                taken: list[socket.socket] = []
                while not over.is_set():
                    try:
                        connection, _ = listening.accept()
                    except OSError:
                        break
                    taken.append(connection)
                    if answer is not None:
                        connection.recv(65536)
                        connection.sendall(answer)
                        connection.close()
                for connection in taken:
                    connection.close()

            thread = threading.Thread(target=accept, daemon=True)
            thread.start()
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
            over.set()
            listening.shutdown(socket.SHUT_RDWR)
        thread.join(10.0)

    return serve


@contextmanager
def black_hole() -> Iterator[str]:
    """A socket that is never accepted from: the kernel takes the connection, and nobody answers."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=64)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


BAD_SERVICES: dict[str, Callable[[], object]] = {
    "no service": nobody,
    "a black hole": black_hole,
    "one that takes the request and never answers": answering(None),
    "one that answers 500": answering(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"),
    "one that answers 401": answering(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"),
    "one that answers 200": answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"),
    "one that hangs up": answering(b""),
    "one that speaks no HTTP": answering(b"220 mail.example.org ESMTP\r\n"),
    "one whose answer stops in the middle": answering(b"HTTP/1.1 20"),
}
