"""A real schema registry for tests: Apicurio, with the interface of Confluent's."""

from __future__ import annotations

import os
import signal
import subprocess
import tarfile
import tempfile
from pathlib import Path

import httpx

from servers.kafka import MAVEN_PLUGIN, java
from servers.process import LocalServer, ServerUnavailable, alone, cache_dir, free_ports, program

VERSION = "2.6.13.Final"
ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"


class LocalRegistry(LocalServer):
    """A registry in memory: after `kill` and `start` it is empty, and counts schemas from 1 again."""

    def __init__(self) -> None:
        self._home = unpacked()
        self.port = free_ports(1)[0]
        super().__init__("registry", f"http://127.0.0.1:{self.port}/apis/ccompat/v7")

    def start(self) -> None:
        options = ["-Xmx200m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        options += ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={self.port}"]
        self._run([java(), *options, "-jar", *self._home.glob("*-runner.jar")], self._answers)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.address}/subjects").is_success
        except httpx.TransportError:
            return False

    def pause(self) -> None:
        """SIGSTOP: it takes connections and does not answer, until `resume`."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def register(self, subject: str, schema: str, kind: str = "AVRO", references: list[dict[str, object]] = []) -> int:  # noqa: B006
        """Add a schema, and return its number."""
        body = {"schema": schema, "schemaType": kind, "references": references}
        answer = httpx.post(f"{self.address}/subjects/{subject}/versions", json=body)
        return int(answer.raise_for_status().json()["id"])


def unpacked() -> Path:
    """The registry's folder; Maven downloads it once.

    Raises:
        ServerUnavailable: there is no Maven and it cannot be installed, or the download failed.
    """
    done = cache_dir() / f"apicurio-{VERSION}"
    if not done.is_dir():
        maven = program("mvn", package="maven")
        with alone(), tempfile.TemporaryDirectory(dir=cache_dir(), prefix="registry-download-") as work:
            if not done.is_dir():  # another process may have been quicker
                _download(maven, Path(work))
                (Path(work) / "unpacked").rename(done)
    return done


def _download(maven: str, work: Path) -> None:
    command = [maven, "-q", "-B", f"{MAVEN_PLUGIN}:copy", f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={work}"]
    found = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=600, check=False)
    archives = list(work.glob("*.tar.gz"))
    if found.returncode or not archives:
        raise ServerUnavailable(f"Maven cannot download {ARTIFACT}: {(found.stdout + found.stderr)[-2000:]}")
    with tarfile.open(archives[0]) as archive:
        archive.extractall(work / "unpacked", filter="data")
