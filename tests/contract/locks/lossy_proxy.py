"""A TCP proxy that can lose replies: the request reaches the server, its answer does not come back."""

from __future__ import annotations

import contextlib
import socket
import threading


class LossyProxy:
    """Forwards to `port` on this machine. `lose_next(command)` closes the connection instead of forwarding the next such reply."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._armed: bytes | None = None
        self._guard = threading.Lock()
        self._sockets: list[socket.socket] = []
        self.lost = 0
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def lose_next(self, command: bytes) -> None:
        with self._guard:
            self._armed = command

    def close(self) -> None:
        for one in [self._listener, *self._sockets]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            self._sockets += [client, server]
            thread = threading.Thread(target=self._serve, args=(client, server), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        # Clients here send one command and wait for its reply: request and reply alternate.
        with contextlib.suppress(OSError):
            while request := client.recv(65536):
                with self._guard:
                    lose = self._armed is not None and self._armed in request
                    if lose:
                        self._armed = None
                        self.lost += 1
                server.sendall(request)
                reply = server.recv(65536)
                if lose:
                    break
                client.sendall(reply)
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
