"""Values in Avro, Protobuf or JSON by the schemas of a registry, as JSON.

A value is as Confluent's serializers write it: a zero byte, the number of its schema in
four bytes, for Protobuf which message of the schema it is, and the encoded event. The
libraries that read it are the extra `registry` of the package.
"""

from __future__ import annotations

import datetime
import io
import logging
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from streamer import DISTRIBUTION
from streamer.dead_letters.base import DeadLetter, Reason
from streamer.errors import SettingsError, SourceUnavailable
from streamer.event.decoded import Decoded
from streamer.event.fields import Invalid
from streamer.settings import EventSettings
from streamer.sources.base import Chunk

TIMEOUT_S = 5.0
ASK_AGAIN_S = 10.0
"""How long a schema that the registry does not have is not asked for again."""
HEADER = struct.Struct(">bI")
UNREADABLE = b"\x00"
"""Stands for a value that is no JSON and will become a dead letter."""

Schema = Mapping[str, Any]
"""What a registry answers: `schema`, `schemaType` unless it is Avro, `references`."""
Reader = Callable[[bytes], Any]
"""Reads an encoded event."""


class SchemaRegistry:
    """Turns values into JSON. For one thread.

    Args:
        url: of the registry; may hold a user and a password.
        value_format: avro, protobuf or json; that of all schemas.
        clock: seconds.

    Raises:
        SettingsError: a library is missing, or the URL is wrong.
    """

    def __init__(
        self,
        url: str,
        value_format: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        try:
            import fastavro  # noqa: F401
            import grpc_tools  # noqa: F401
            import httpx
        except ImportError as error:
            raise SettingsError(
                [
                    f"schema-registry: {error.name} is not installed: pip install '{DISTRIBUTION}[registry]'"
                ]
            ) from error
        try:
            named = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise SettingsError([f"schema-registry: {error}"]) from error
        logging.getLogger("httpx").setLevel(logging.WARNING)  # no line a request
        self._url = named.copy_with(username=None, password=None)
        login = (named.username, named.password) if named.username else None
        self._client = httpx.Client(base_url=self._url, auth=login, timeout=TIMEOUT_S)
        self._make_reader = READERS[value_format]
        self._format = value_format
        self._clock = clock
        self._readers: dict[int, Reader] = {}
        self._unknown: dict[int, tuple[float, Invalid]] = {}

    def decoded(self, chunk: Chunk, decode: Callable[[Chunk], Decoded]) -> Decoded:
        """What a decoder of JSON makes of a chunk; dead letters hold the records as
        they came.

        Raises:
            SourceUnavailable: the registry does not answer.
        """
        in_json, problems = self.as_json(chunk)
        found = decode(in_json)
        found.letters = with_originals(found.letters, chunk, problems)
        return found

    def as_json(self, chunk: Chunk) -> tuple[Chunk, dict[int, Invalid]]:
        """A chunk with values in JSON; and by their offsets, what is wrong with those
        that cannot be read.

        Raises:
            SourceUnavailable: the registry does not answer.
        """
        values = []
        problems = {}
        for offset, value in zip(chunk.offsets, chunk.values, strict=True):
            try:
                values.append(self._json(value) if value else value)
            except Invalid as problem:
                problems[offset] = problem
                values.append(UNREADABLE)
        return replace(chunk, values=values), problems

    def _json(self, value: bytes) -> bytes:
        magic, number = 1, 0
        if len(value) > HEADER.size:
            magic, number = HEADER.unpack_from(value)
        if magic != 0:
            raise Invalid(
                Reason.BAD_ENCODING, "the value does not begin with a schema's number"
            )
        reader = self._readers.get(number) or self._new_reader(number)
        try:
            return msgspec.json.encode(reader(value[HEADER.size :]))
        except Exception as error:  # the libraries raise whatever they meet
            raise Invalid(
                Reason.BAD_ENCODING,
                f"it does not fit schema {number}: {type(error).__name__}: {error}"[
                    :200
                ],
            ) from error

    def _new_reader(self, number: int) -> Reader:
        since, problem = self._unknown.get(number, (0.0, None))
        if problem is not None and self._clock() - since < ASK_AGAIN_S:
            raise problem
        try:
            schema = self._ask(f"schemas/ids/{number}")
            kind = schema.get("schemaType", "AVRO").lower()
            if kind != self._format:
                text = f"schema {number} is {kind}, not {self._format}: give --value-format {kind}"
                raise Invalid(Reason.UNKNOWN_SCHEMA, text)
            reader = self._make_reader(schema, list(self._references(schema)))
        except Invalid as problem:
            self._unknown[number] = (self._clock(), problem)
            raise
        self._readers[number] = reader
        return reader

    def _references(self, schema: Schema) -> Iterator[tuple[str, Schema]]:
        """The schemas that one refers to, by name, those before what needs them."""
        for found in schema.get("references") or ():
            path = f"subjects/{found['subject']}/versions/{found['version']}"
            referred = self._ask(path)
            yield from self._references(referred)
            yield found["name"], referred

    def _ask(self, path: str) -> Schema:
        import httpx

        try:
            response = self._client.get(path)
            if response.status_code == httpx.codes.NOT_FOUND:
                raise Invalid(Reason.UNKNOWN_SCHEMA, f"{self._url} has no {path}")
            found: Schema = response.raise_for_status().json()
        except (httpx.HTTPError, ValueError) as error:
            status = getattr(getattr(error, "response", None), "status_code", "")
            what = f"status {status}" if status else f"{type(error).__name__}: {error}"
            raise SourceUnavailable(
                f"The schema registry at {self._url} does not answer: {what}"
            ) from error
        return found


def registry_of(settings: EventSettings) -> SchemaRegistry | None:
    """The registry of the settings, if they name one."""
    if settings.schema_registry is None:
        return None
    return SchemaRegistry(settings.schema_registry, settings.value_format)


def with_originals(
    letters: list[DeadLetter], chunk: Chunk, problems: Mapping[int, Invalid]
) -> list[DeadLetter]:
    """Dead letters of values in JSON, with the values and problems that these had."""
    values = dict(zip(chunk.offsets, chunk.values, strict=True))
    found = []
    for letter in letters:
        if letter.index is None:
            letter = msgspec.structs.replace(letter, value=values[letter.offset])
        if problem := problems.get(letter.offset):
            letter = msgspec.structs.replace(
                letter, reason=problem.reason, detail=problem.detail
            )
        found.append(letter)
    return found


def json_reader(schema: Schema, references: list[tuple[str, Schema]]) -> Reader:
    """Reads JSON, which needs no schema."""
    return lambda value: msgspec.Raw(value)


def avro_reader(schema: Schema, references: list[tuple[str, Schema]]) -> Reader:
    """Reads Avro. Dates and times become text in ISO 8601."""
    from fastavro import parse_schema, schemaless_reader
    from fastavro.schema import SchemaParseException

    named: dict[str, Any] = {}
    try:
        for _, referred in references:
            parse_schema(msgspec.json.decode(referred["schema"]), named)
        parsed = parse_schema(msgspec.json.decode(schema["schema"]), named)
    except (SchemaParseException, msgspec.DecodeError) as error:
        raise Invalid(Reason.UNKNOWN_SCHEMA, f"its schema: {error}") from error
    return lambda value: schemaless_reader(io.BytesIO(value), parsed, None)


def protobuf_reader(schema: Schema, references: list[tuple[str, Schema]]) -> Reader:
    """Reads Protobuf. A field that has its default value is absent, as it is on the
    wire.
    """
    from google.protobuf import descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    files = compile_protobuf([*references, ("schema.proto", schema)])
    for file in files:
        pool.Add(file)
    last = files[-1]

    def read(value: bytes) -> Any:
        place, start = read_indexes(value)
        found = last.message_type[place[0]]
        name = ".".join(filter(None, (last.package, found.name)))
        for index in place[1:]:
            found = found.nested_type[index]
            name += f".{found.name}"
        kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
        return as_plain(kind.FromString(value[start:]))

    return read


def compile_protobuf(sources: list[tuple[str, Schema]]) -> list[Any]:
    """The descriptors of some .proto files and of what they import."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from grpc_tools import protoc

    known = resources.files("grpc_tools") / "_proto"
    with tempfile.TemporaryDirectory() as directory:
        for name, schema in sources:
            path = (Path(directory) / name).resolve()
            if not path.is_relative_to(Path(directory).resolve()):
                raise Invalid(Reason.UNKNOWN_SCHEMA, f"its schema refers to {name!r}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(schema["schema"], encoding="utf-8")
        out = Path(directory) / "descriptors"
        arguments = ["protoc", f"-I{directory}", f"-I{known}", "--include_imports"]
        arguments += [f"--descriptor_set_out={out}", sources[-1][0]]
        if protoc.main(arguments):
            raise Invalid(Reason.UNKNOWN_SCHEMA, "its schema cannot be compiled")
        return list(FileDescriptorSet.FromString(out.read_bytes()).file)


def read_indexes(value: bytes) -> tuple[list[int], int]:
    """Which message of a schema a value is, by its place at each depth; and where the
    message begins.
    """
    count, start = read_number(value, 0)
    place = []
    for _ in range(count):
        index, start = read_number(value, start)
        place.append(index)
    return place or [0], start


def read_number(value: bytes, start: int) -> tuple[int, int]:
    """A zigzag number of variable length, and where it ends."""
    found = 0
    shift = 0
    while True:
        found |= (value[start] & 0x7F) << shift
        shift += 7
        start += 1
        if value[start - 1] < 0x80:
            return (found >> 1) ^ -(found & 1), start


def as_plain(message: Any) -> Any:
    """A message as dictionaries, lists and plain values."""
    if isinstance(message, bool | int | float | str | bytes):
        return message
    if hasattr(message, "ToDatetime"):
        return message.ToDatetime(datetime.UTC)
    if hasattr(message, "ListFields"):
        return {field.name: as_plain(part) for field, part in message.ListFields()}
    if hasattr(message, "items"):
        return {str(key): as_plain(part) for key, part in message.items()}
    return [as_plain(part) for part in message]


READERS = {"avro": avro_reader, "protobuf": protobuf_reader, "json": json_reader}
"""What makes a reader of a schema, by the format of values."""
