"""A broker with a listener behind a proxy, which can be cut, slowed and half opened, and one with TLS and SCRAM."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from typing import Self

import trustme
from cryptography.hazmat.primitives import serialization
from kafka.admin import ScramMechanism, UserScramCredentialUpsertion
from servers.kafka import KafkaServer, LocalKafka
from servers.process import free_ports

SCRAM_USER, SCRAM_PASSWORD = "trainer", "scram-s3cret"


class Proxy:
    """A port that hands on to another one, as well or as badly as it is told.

    `state` is "open"; "slow" (40 ms a piece); "silent" (half open: connected, and nothing passes, for good on
    connections that have seen it); "closed" (connections are reset, and no new ones taken).
    """

    def __init__(self, port: int, to: int) -> None:
        self.port, self._to, self.state = port, to, "open"
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, daemon=True).start()

    def set(self, state: str) -> None:
        """Change what happens to connections, those that are open included."""
        self.state = state
        if state == "closed":
            for end in list(self._sockets):
                end.close()

    def close(self) -> None:
        self._listener.close()
        self.set("closed")

    def _accept(self) -> None:
        while True:
            try:
                theirs, _ = self._listener.accept()
                if self.state == "closed":
                    theirs.close()
                    continue
                ours = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                if self._listener.fileno() < 0:
                    return
                theirs.close()
                continue
            self._sockets |= {theirs, ours}
            for source, target in ((theirs, ours), (ours, theirs)):
                threading.Thread(target=self._hand_on, args=(source, target), daemon=True).start()

    def _hand_on(self, source: socket.socket, target: socket.socket) -> None:
        silent = False
        try:
            while received := source.recv(65_536):
                silent = silent or self.state == "silent"
                if self.state == "slow":
                    time.sleep(0.04)
                if not silent:
                    target.sendall(received)
        except OSError:
            pass
        for end in (source, target):
            end.close()
            self._sockets.discard(end)


LISTENERS = """\
listeners={old},PROXIED://127.0.0.1:{behind},SECURE://127.0.0.1:{secure}
advertised.listeners={advertised},PROXIED://127.0.0.1:{proxied},SECURE://127.0.0.1:{secure}
listener.security.protocol.map={map},PROXIED:PLAINTEXT,SECURE:SASL_SSL
listener.name.secure.sasl.enabled.mechanisms=SCRAM-SHA-256
listener.name.secure.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.secure.ssl.keystore.type=PEM
listener.name.secure.ssl.keystore.location={keys}
"""


class LocalFaultyKafka(LocalKafka):
    """The broker of all tests, with two listeners more."""

    def __init__(self) -> None:
        super().__init__()
        behind, proxied, secure = free_ports(3)
        self.proxied_bootstrap, self.secure_bootstrap = f"127.0.0.1:{proxied}", f"127.0.0.1:{secure}"
        self.authority = self.home / "authority.pem"
        keys = self.home / "keys.pem"
        issuer = trustme.CA()
        issuer.cert_pem.write_to_path(str(self.authority))
        issued = issuer.issue_cert("127.0.0.1", "localhost")
        key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        keys.write_bytes(key + b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        self.proxy = Proxy(proxied, behind)
        lines = dict(line.split("=", 1) for line in self._properties.read_text().splitlines() if "=" in line)
        more = LISTENERS.format(
            old=lines["listeners"],
            advertised=lines["advertised.listeners"],
            map=lines["listener.security.protocol.map"],
            behind=behind,
            proxied=proxied,
            secure=secure,
            keys=keys,
        )
        self._properties.write_text(self._properties.read_text() + more)  # the last line of a name counts

    def delete(self) -> None:
        self.proxy.close()
        super().delete()


class FaultyKafka(KafkaServer):
    """Always a process of this machine, as others cannot be disturbed."""

    LOCAL = LocalFaultyKafka

    def start(self) -> Self:
        self._local = LocalFaultyKafka()
        self._local.start()
        self.address = self._local.address
        return self

    def add_scram_user(self) -> None:
        with self.admin() as admin:
            admin.alter_user_scram_credentials(
                [UserScramCredentialUpsertion(SCRAM_USER, ScramMechanism.SCRAM_SHA_256, SCRAM_PASSWORD)]
            )

    @property
    def authority(self) -> Path:
        return self.local.authority
