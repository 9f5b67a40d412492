"""A TCP proxy before PostgreSQL that can lose replies and cut connections, one role at a time."""

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

from psycopg.conninfo import conninfo_to_dict, make_conninfo


class Proxy:
    """Forwards to the server of `dsn`; `.dsn` leads through it.

    Connections are told apart by what stands in their application_name, such as "calls".
    """

    def __init__(self, dsn: str) -> None:
        parts = conninfo_to_dict(dsn)
        self._target = (str(parts["host"]), int(str(parts["port"])))
        self._server = socket.create_server(("127.0.0.1", 0))
        self.dsn = make_conninfo(
            dsn, host="127.0.0.1", port=self._server.getsockname()[1], sslmode="disable"
        )
        self._swallowed: set[str] = set()
        self._marker = b""
        self._pairs: list[tuple[str, socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut("")
        for thread in self._threads:
            thread.join(10)

    def swallow_replies(self, word: str) -> None:
        """From now on the server's replies to these connections are lost."""
        self._swallowed.add(word)

    def swallow_reply_to(self, words: bytes) -> None:
        """Lose all replies from when the next statement with these words is sent."""
        self._marker = words

    def forward_again(self, word: str) -> None:
        """Connections made from now on work again."""
        self._swallowed.discard(word)

    def cut(self, word: str) -> None:
        """Cut these connections; new ones work again."""
        self.forward_again(word)
        self.forward_again("")
        for name, client, server in self._pairs:
            if word in name:
                for end in (client, server):
                    with contextlib.suppress(OSError):
                        end.shutdown(socket.SHUT_RDWR)

    def _start(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            hello = client.recv(65536)  # the startup packet, which names the application
            name = hello.decode("latin-1")
            self._pairs.append((name, client, server))
            server.sendall(hello)
            self._start(self._forward, client, server, "")
            self._start(self._forward, server, client, name)

    def _forward(self, source: socket.socket, sink: socket.socket, name: str) -> None:
        with source, contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self._marker and self._marker in data:
                    self._swallowed.add("")
                    self._marker = b""
                if not (name and any(word in name for word in self._swallowed)):
                    sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
