"""A real Apache Kafka broker for tests."""

from __future__ import annotations

import contextlib
import re
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import NewTopic

from servers.process import LocalServer, ServerUnavailable, alone, cache_dir, free_ports, program
from servers.shared import SharedServer

KAFKA_VERSION = "4.3.1"
SLF4J_VERSION = "1.7.36"
MAVEN_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
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


class LocalKafka(LocalServer):
    """Broker and controller in one process, with ports and data of its own, on Java 17 or newer."""

    def __init__(self) -> None:
        self._java = java()
        self._jars = jars()
        plain, sasl, controller = free_ports(3)
        super().__init__("kafka", f"127.0.0.1:{plain}")
        self.sasl_bootstrap = f"127.0.0.1:{sasl}"
        self._properties = self.home / "server.properties"
        self._properties.write_text(
            PROPERTIES.format(
                plain=plain,
                sasl=sasl,
                controller=controller,
                logs=self.home / "logs",
                user=SASL_USER,
                password=SASL_PASSWORD,
            )
        )

    def start(self) -> None:
        if self._process is None:
            self._format()
        self._run(
            self._command("kafka.Kafka", self._properties),
            lambda: "Kafka Server started" in self.log.read_text(errors="replace"),
        )

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


class KafkaServer(SharedServer[LocalKafka]):
    """A broker: that of `STREAMER_TEST_KAFKA` (`host:port`), in a container, or Kafka in KRaft mode on this machine.

    Only the last has a listener that wants a password.
    """

    VARIABLE, LOCAL = "STREAMER_TEST_KAFKA", LocalKafka

    @property
    def bootstrap(self) -> str:
        return self.address

    @property
    def sasl_bootstrap(self) -> str | None:
        return self._local.sasl_bootstrap if self._local else None

    def _make_container(self) -> Any:
        from testcontainers.community.kafka import KafkaContainer

        return KafkaContainer().with_kraft().with_env("KAFKA_GROUP_MIN_SESSION_TIMEOUT_MS", "500")

    def _address_of(self, container: Any) -> str:
        return str(container.get_bootstrap_server())

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


def java() -> str:
    """The path of a Java that is new enough; installed if it is missing.

    Raises:
        ServerUnavailable: there is none and it cannot be installed.
    """
    path = program("java", package="default-jre-headless")
    said = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    version = re.search(r'version "(\d+)', said)
    if not version or int(version[1]) < MIN_JAVA:
        raise ServerUnavailable(f"Kafka {KAFKA_VERSION} needs Java {MIN_JAVA} or newer; `java -version` says {said!r}")
    return path


def jars() -> Path:
    """The folder with Kafka and what it needs, downloaded by Maven once.

    The download goes to a folder of its own that gets its name when it is complete, so that an interrupted one is
    never taken for a whole one.

    Raises:
        ServerUnavailable: there is no Maven and it cannot be installed, or the download failed.
    """
    done = cache_dir() / f"kafka-{KAFKA_VERSION}"
    if not done.is_dir():
        maven = program("mvn", package="maven")
        with alone(), tempfile.TemporaryDirectory(dir=cache_dir(), prefix="kafka-download-") as work:
            if not done.is_dir():  # another process may have been quicker
                _download(maven, Path(work))
                (Path(work) / "jars").rename(done)
    return done


def _download(maven: str, work: Path) -> None:
    (work / "pom.xml").write_text(POM)
    command = [maven, "-q", "-B", f"{MAVEN_PLUGIN}:copy-dependencies", f"-DoutputDirectory={work / 'jars'}"]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode or not list((work / "jars").glob(f"kafka_*-{KAFKA_VERSION}.jar")):
        raise ServerUnavailable(f"Maven cannot download Kafka {KAFKA_VERSION}: {(done.stdout + done.stderr)[-2000:]}")
