"""A real Apache Kafka broker for tests."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import NewTopic

from servers.process import (
    Process,
    ServerUnavailable,
    apt_install,
    cache_dir,
    docker_answers,
    free_ports,
    started,
)

KAFKA_VERSION = "4.3.1"
SLF4J_VERSION = "1.7.36"
MIN_JAVA = 17
SASL_USER, SASL_PASSWORD = "streamer", "streamer-secret"

POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>streamer.tests</groupId> <artifactId>kafka-server</artifactId> <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId> <artifactId>kafka_2.13</artifactId>
      <version>{KAFKA_VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId> <artifactId>slf4j-simple</artifactId> <version>{SLF4J_VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""

PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{plain},SASL://127.0.0.1:{sasl},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{plain},SASL://127.0.0.1:{sasl}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
listener.name.sasl.sasl.enabled.mechanisms=PLAIN
listener.name.sasl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_{user}="{password}";
log.dirs={logs}
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=500
num.network.threads=2
num.io.threads=2
background.threads=2
num.recovery.threads.per.data.dir=1
log.cleaner.enable=false
# tests write records with old times, which a broker would remove after a while
log.retention.ms=-1
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=500
"""


class KafkaServer:
    """One broker, from the first of these that works:

    1. the address in `STREAMER_TEST_KAFKA` (`host:port`),
    2. a container, where a Docker engine answers,
    3. a process on this machine: Kafka in KRaft mode, broker and controller in one, on Java 17 or newer.

    Only the third can be killed and restarted, and only it has a listener that wants a password.
    """

    def __init__(self) -> None:
        self.bootstrap = ""
        self.sasl_bootstrap: str | None = None
        self._local: LocalKafka | None = None
        self._container: Any = None

    def start(self) -> KafkaServer:
        """Find or start the broker.

        Raises:
            ServerUnavailable: none of the three ways works.
        """
        if address := os.environ.get("STREAMER_TEST_KAFKA"):
            self.bootstrap = address
        elif container := _start_container():
            self._container = container
            self.bootstrap = container.get_bootstrap_server()
        else:
            self._local = LocalKafka()
            self._local.start()
            self.bootstrap, self.sasl_bootstrap = self._local.bootstrap, self._local.sasl_bootstrap
        return self

    @property
    def can_restart(self) -> bool:
        return self._local is not None

    @property
    def running(self) -> bool:
        return self._local is None or self._local.running()

    def stop(self) -> None:
        """Shut the broker down in good order, ready for `restart`. A broker not ours is left alone."""
        if self._local:
            self._local.stop()
        if self._container:
            self._container.stop()
            self._container = None

    def kill(self) -> None:
        """SIGKILL."""
        self._needs_local().kill()

    def restart(self) -> None:
        """Start again on the same ports and data."""
        self._needs_local().start()

    def delete(self) -> None:
        """Stop the broker and remove its data."""
        self.stop()
        if self._local:
            self._local.delete()

    def _needs_local(self) -> LocalKafka:
        if self._local is None:
            raise RuntimeError("only a broker that runs as a local process can be killed and restarted")
        return self._local

    @contextlib.contextmanager
    def admin(self) -> Iterator[KafkaAdminClient]:
        client = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        try:
            yield client
        finally:
            client.close()

    def create_topic(self, name: str | None = None, partitions: int = 1, **configs: str) -> str:
        """Create a topic, by default with a name of its own; return its name when it can be used."""
        name = name or f"test-{uuid.uuid4().hex[:12]}"
        with self.admin() as admin:
            admin.create_topics([NewTopic(name, partitions, 1, topic_configs=configs)])
            admin.wait_for_topics([name])
        return name

    def delete_topic(self, name: str) -> None:
        with self.admin() as admin:
            admin.delete_topics([name])


class LocalKafka:
    """Kafka as a process of this machine, with ports and data of its own."""

    def __init__(self) -> None:
        self._java = java()
        self._jars = jars()
        self._home = Path(tempfile.mkdtemp(prefix="streamer-kafka-"))
        plain, sasl, controller = free_ports(3)
        self.bootstrap, self.sasl_bootstrap = f"127.0.0.1:{plain}", f"127.0.0.1:{sasl}"
        self._properties = self._home / "server.properties"
        self._properties.write_text(
            PROPERTIES.format(
                plain=plain,
                sasl=sasl,
                controller=controller,
                logs=self._home / "logs",
                user=SASL_USER,
                password=SASL_PASSWORD,
            )
        )
        self._process: Process | None = None

    def start(self) -> None:
        if self._process is None:
            self._format()
        log = self._home / "server.log"
        log.write_bytes(b"")
        self._process = Process(self._command("kafka.Kafka", self._properties), log)
        self._process.wait_until(lambda: "Kafka Server started" in log.read_text(errors="replace"), timeout_s=60)

    def stop(self) -> None:
        if self._process:
            self._process.stop()

    def kill(self) -> None:
        if self._process:
            self._process.kill()

    def running(self) -> bool:
        return self._process is not None and self._process.running()

    def delete(self) -> None:
        shutil.rmtree(self._home, ignore_errors=True)

    def _format(self) -> None:
        command = self._command(
            "kafka.tools.StorageTool", "format", "-t", "c3RyZWFtZXItdGVzdHMtMQ", "-c", self._properties
        )
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise ServerUnavailable(f"Kafka's storage cannot be formatted: {(done.stdout + done.stderr)[-2000:]}")

    def _command(self, main: str, *arguments: str | Path) -> list[str | Path]:
        """A small heap and the quick compiler only: it is up sooner and leaves the cores to the tests."""
        options = ["-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
        return [self._java, *options, "-cp", f"{self._jars}/*", main, *arguments]


def java() -> str:
    """The path of a Java that is new enough; installed if it is missing.

    Raises:
        ServerUnavailable: there is none and it cannot be installed.
    """
    if not shutil.which("java"):
        apt_install("default-jre-headless")
    path = shutil.which("java")
    if not path:
        raise ServerUnavailable("Kafka needs Java, and there is no `java` on the PATH")
    said = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    version = re.search(r'version "(\d+)', said)
    if not version or int(version[1]) < MIN_JAVA:
        raise ServerUnavailable(f"Kafka {KAFKA_VERSION} needs Java {MIN_JAVA} or newer; `java -version` says {said!r}")
    return path


def jars() -> Path:
    """The folder with Kafka and what it needs, downloaded by Maven once.

    The download goes to a folder of its own that gets its name when it is complete, so that an interrupted
    one is never taken for a whole one, and two runs at once do no harm.

    Raises:
        ServerUnavailable: there is no Maven and it cannot be installed, or the download failed.
    """
    done = cache_dir() / f"kafka-{KAFKA_VERSION}"
    if not done.is_dir():
        with tempfile.TemporaryDirectory(dir=cache_dir(), prefix="kafka-download-") as work:
            _download(Path(work))
            with contextlib.suppress(OSError):  # another run was quicker; its folder is as good
                (Path(work) / "jars").rename(done)
    return done


def _download(work: Path) -> None:
    if not shutil.which("mvn"):
        apt_install("maven", "default-jre-headless")
    (work / "pom.xml").write_text(POM)
    command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={work / 'jars'}"]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode or not list((work / "jars").glob(f"kafka_*-{KAFKA_VERSION}.jar")):
        raise ServerUnavailable(f"Maven cannot download Kafka {KAFKA_VERSION}: {(done.stdout + done.stderr)[-2000:]}")


def _start_container() -> Any:
    """A running container, or None where Docker cannot give one."""
    if not docker_answers():
        return None
    from testcontainers.community.kafka import KafkaContainer

    container = KafkaContainer().with_kraft().with_env("KAFKA_GROUP_MIN_SESSION_TIMEOUT_MS", "500")
    return started(lambda: container.start(timeout=120), container.stop)
