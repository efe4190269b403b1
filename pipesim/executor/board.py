"""Where the processes of a run meet and tell each other things: torch's store, and signed JSON in it.

A store has no passwords: who reaches its port writes what they like. So nothing that comes out of it is taken
for more than JSON, and only if a process of this run signed it.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
from datetime import timedelta
from hashlib import sha256
from typing import Any

from torch.distributed import TCPStore

from pipesim.errors import ExecutionError

_SEAL_BYTES = sha256().digest_size


class Board:
    """JSON documents by name, written and read by whoever has the key.

    Parameters
    ----------
    store : torch.distributed store
        Shared by all processes of the run.
    key : bytes
        Their secret.
    """

    def __init__(self, store: Any, key: bytes) -> None:
        self._store = store
        self._key = key

    def put(self, name: str, document: Any) -> None:
        """Write a document, signed together with its name, so that it cannot be passed off as another."""
        text = json.dumps(document).encode()
        self._store.set(name, self._seal(name, text) + text)

    def get(self, name: str) -> Any:
        """Wait for a document and read it.

        Raises
        ------
        ExecutionError
            If it was not written by a process of this run.
        """
        written = bytes(self._store.get(name))
        seal, text = written[:_SEAL_BYTES], written[_SEAL_BYTES:]
        try:
            if hmac.compare_digest(seal, self._seal(name, text)):
                return json.loads(text)
        except (ValueError, RecursionError):
            pass
        raise ExecutionError(f"{name!r} in the processes' store was not written by a process of this run")

    def _seal(self, name: str, text: bytes) -> bytes:
        return hmac.digest(self._key, f"{name}\0".encode() + text, "sha256")


def new_key() -> bytes:
    """Draw a key that nobody can guess."""
    return secrets.token_bytes(_SEAL_BYTES)


def agree_on_key(store: Any, num_processes: int, token: str) -> bytes:
    """Derive a run's key from its token and a number drawn by each process.

    A process with another token gets another key, and nothing signed in an earlier run is good in this one.
    Good once all processes have called `announce`.
    """
    drawn = b"".join(sha256(store.get(_nonce_name(each))).digest() for each in range(num_processes))
    return hmac.digest(token.encode(), drawn, "sha256")


def announce(store: Any, process: int) -> None:
    """Draw this process's number and show it."""
    store.set(_nonce_name(process), secrets.token_hex(_SEAL_BYTES))


def wait_for(store: Any, process: int, timeout: timedelta) -> None:
    """Wait for another process's number.

    Raises
    ------
    RuntimeError
        If it does not come in time.
    """
    store.wait([_nonce_name(process)], timeout)


def _nonce_name(process: int) -> str:
    return f"nonce {process}"


def loopback_store(port: int, timeout: timedelta) -> TCPStore:
    """Open a store that only this machine reaches; left to itself torch's listens on all interfaces.

    Parameters
    ----------
    port : int
        0 for any that is free.
    timeout : timedelta
        Of whatever waits in it.

    Raises
    ------
    OSError
        If the port is taken.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        port = listener.getsockname()[1]
        return TCPStore(
            "127.0.0.1",
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timeout,
            master_listen_fd=listener.detach(),
            # The libuv server of torch 2.6 takes no socket that is handed to it.
            use_libuv=False,
        )
