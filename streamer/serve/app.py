"""The HTTP side of a server: its paths, who may ask, and how much."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from http import HTTPStatus
from importlib import resources
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from fastapi import FastAPI, HTTPException, Path, Query, Request, Response
from prometheus_client.exposition import choose_encoder
from pydantic import BaseModel, Field

from streamer.errors import StreamerError
from streamer.serve.freshness import LAST_S
from streamer.serve.metrics import ServerMetrics
from streamer.serve.service import Asked, NotReady, Service, UnknownItem
from streamer.web.server import HEADERS, is_local

ABOUT = "Recommendations of a model that learns from a stream."
MAX_K = 1000
MAX_IDS = 1000
MAX_QUERIES = 100
MAX_TOGETHER = 16
"""Requests that are answered together."""
MAX_BODY_BYTES = 1 << 20
REQUEST_S = 10.0
"""A request that takes longer to arrive and to be answered is given up."""

Id = Annotated[str, Field(min_length=1, max_length=256)]
IdPath = Annotated[str, Path(min_length=1, max_length=256)]
IdQuery = Annotated[Sequence[Id], Query(max_length=MAX_IDS)]
K = Annotated[int, Query(ge=1, le=MAX_K)]


class Questions(BaseModel):
    """For whom to recommend, and what: a user, or the recent items of a session without
    one.
    """

    user: Id | None = None
    recent: list[Id] = Field(
        [], max_length=MAX_IDS, description="Items of a session, oldest first."
    )
    k: int = Field(10, ge=1, le=MAX_K)
    exclude_seen: bool = True
    exclude: list[Id] = Field([], max_length=MAX_IDS)
    explain: bool = False
    features: dict[Id, str | float] | None = Field(
        None, max_length=64, description="Of whoever the session is of."
    )

    def asked(self) -> Asked:
        """As the service takes it."""
        return Asked(
            self.user,
            self.recent,
            self.k,
            self.exclude_seen,
            self.exclude,
            self.explain,
            self.features,
        )


class Batch(BaseModel):
    """Several at once."""

    queries: list[Questions] = Field(max_length=MAX_QUERIES)


class NearItem(BaseModel):
    """A recent item that made a recommendation."""

    item: str
    nearness: float


class Reasons(BaseModel):
    """What made a recommendation."""

    parts: dict[str, float] = Field(
        description="What each kind of evidence adds to the score."
    )
    recent: list[NearItem]


class Recommended(BaseModel):
    """A recommended item."""

    item: str
    score: float
    recent: bool
    reasons: Reasons | None = None


class Recommendations(BaseModel):
    """An answer, of one generation and step of the model."""

    user: str | None
    known: bool
    note: str | None
    recent: list[str] = Field(
        description="The recent items that it is based on, most recent first."
    )
    items: list[Recommended]
    titles: dict[str, str] = Field(
        description="What people call the items above, of those that have a title."
    )
    generation: int
    step: int
    age_s: float


class BatchAnswer(BaseModel):
    """Answers in the order of the queries, all of one generation."""

    answers: list[Recommendations]


class HiddenItems(BaseModel):
    """Items that are never recommended."""

    hidden: list[str]


class Click(BaseModel):
    """What a visitor of the page did."""

    user: Id
    item: Id


class Desk:
    """Answers requests that wait at the same time together, which costs less than one
    by one.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._waiting: list[tuple[Asked, asyncio.Future[dict[str, Any]]]] = []

    async def answer(self, asked: Asked) -> dict[str, Any]:
        """See `Service.recommend`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[dict[str, Any]] = loop.create_future()
        self._waiting.append((asked, future))
        if len(self._waiting) == 1:
            loop.call_soon(self._work)
        return await future

    def _work(self) -> None:
        now = self._waiting[:MAX_TOGETHER]
        self._waiting = self._waiting[MAX_TOGETHER:]
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._work)
        try:
            answers: Sequence[dict[str, Any] | Exception] = self._service.recommend_all(
                [a for a, _ in now]
            )
        except (
            Exception
        ) as error:  # whatever it is: each of them has a client that waits
            answers = [error] * len(now)
        for (_, future), answer in zip(now, answers, strict=True):
            if future.cancelled():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)


def make_app(
    service: Service,
    metrics: ServerMetrics,
    *,
    token: str | None = None,
    only_local: bool = True,
    write_event: Callable[[str, str], None] | None = None,
) -> FastAPI:
    """Everything that can be asked.

    Args:
        service: answers.
        metrics: for Prometheus.
        token: that requests must carry; None for none.
        only_local: whether requests for other names than this machine's own are
            refused.
        write_event: writes an event of a user and an item to the stream; None if that
            cannot be done.
    """
    app = FastAPI(
        title="Streamer", description=ABOUT, docs_url=None, redoc_url=None
    )  # those load from elsewhere
    desk = Desk(service)
    app.add_middleware(Guard, metrics=metrics, token=token, only_local=only_local)

    @app.get("/users/{user:path}/recommendations", response_model=Recommendations)
    async def for_user(
        user: IdPath,
        k: K = 10,
        exclude_seen: bool = True,
        exclude: IdQuery = (),
        explain: bool = False,
    ) -> Response:
        """The best items for a user; one who is not known gets what a user without
        history gets.
        """
        return _json(
            await desk.answer(Asked(user, (), k, exclude_seen, exclude, explain))
        )

    @app.post("/recommendations", response_model=Recommendations)
    async def for_session(questions: Questions) -> Response:
        """The best items for a session of recent items, or for a user."""
        return _json(await desk.answer(questions.asked()))

    @app.post("/recommendations/batch", response_model=BatchAnswer)
    async def for_several(batch: Batch) -> Response:
        """Several at once, answered by one step of the model; one that cannot be
        answered has an `error`.
        """
        answers = service.recommend_all(
            [questions.asked() for questions in batch.queries]
        )
        return _json(
            {
                "answers": [
                    {"error": str(a)} if isinstance(a, StreamerError) else a
                    for a in answers
                ]
            }
        )

    @app.get("/items/{item:path}/similar", response_model=Recommendations)
    async def similar(item: IdPath, k: K = 10, explain: bool = False) -> Response:
        """What users who had an item may like next."""
        return _json(service.similar(item, k, explain))

    @app.get("/hidden", response_model=HiddenItems)
    async def hidden() -> Response:
        """All hidden items."""
        return _json({"hidden": sorted(service.hidden.ids)})

    @app.put("/hidden/{item:path}", response_model=HiddenItems)
    async def hide(item: IdPath) -> Response:
        """Never recommend an item, from the next answer on."""
        await asyncio.to_thread(service.hidden.hide, item)
        return _json({"hidden": sorted(service.hidden.ids)})

    @app.delete("/hidden/{item:path}", response_model=HiddenItems)
    async def show(item: IdPath) -> Response:
        """Recommend it again."""
        await asyncio.to_thread(service.hidden.show, item)
        return _json({"hidden": sorted(service.hidden.ids)})

    if write_event is not None:

        @app.post("/events", status_code=202)
        async def click(event: Click) -> Response:
            """Write an event to the stream, as the page does when an item is clicked."""
            await asyncio.to_thread(write_event, event.user, event.item)
            return _json({"written": True}, HTTPStatus.ACCEPTED)

    @app.get("/status")
    async def status(last_s: Annotated[float, Query(gt=0)] = LAST_S) -> Response:
        """What is served, and how fresh it was in the last seconds."""
        ok, reason = service.ready()
        about = service.about() if service.replica is not None else {}
        extra = {
            "freshness": service.freshness.quantiles(time.time(), last_s),
            "writes_events": write_event is not None,
        }
        return _json(
            {"ready": ok, "reason": reason, **about, **service.sizes(), **extra}
        )

    @app.get("/healthz")
    async def alive() -> Response:
        """The process answers."""
        return _json({"ok": True, "reason": ""})

    @app.get("/readyz")
    async def ready() -> Response:
        """Everything that is published is served."""
        ok, reason = service.ready()
        return _json(
            {"ok": ok, "reason": reason},
            HTTPStatus.OK if ok else HTTPStatus.SERVICE_UNAVAILABLE,
        )

    @app.get("/metrics")
    async def prometheus(request: Request) -> Response:
        """Metrics for Prometheus."""
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        metrics.refresh(service)
        return Response(encode(metrics.registry), media_type=kind)

    for path, file in PAGE.items():
        app.add_api_route(path, _file(*file), include_in_schema=False)
    app.add_exception_handler(NotReady, _explained(HTTPStatus.SERVICE_UNAVAILABLE))
    app.add_exception_handler(UnknownItem, _explained(HTTPStatus.NOT_FOUND))
    app.add_exception_handler(StreamerError, _explained(HTTPStatus.CONFLICT))
    return app


PAGE = {
    "/": ("serve", "page.html", "text/html; charset=utf-8"),
    "/page.js": ("serve", "page.js", "text/javascript; charset=utf-8"),
    "/serve.css": ("serve", "serve.css", "text/css; charset=utf-8"),
    "/page.css": ("web", "page.css", "text/css; charset=utf-8"),  # the live page's
    "/icon.svg": ("web", "icon.svg", "image/svg+xml"),
}
OPEN_PATHS = {"/healthz", "/readyz", *PAGE}
"""What needs no token: health for an orchestrator, and the page, which asks for one."""


def _file(room: str, name: str, kind: str) -> Callable[[], Awaitable[Response]]:
    async def file() -> Response:
        body = (resources.files(f"streamer.{room}") / "static" / name).read_bytes()
        return Response(body, media_type=kind, headers={"Cache-Control": "no-cache"})

    return file


def _json(value: Any, status: int = HTTPStatus.OK) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _explained(status: HTTPStatus) -> Callable[[Request, Exception], Response]:
    return lambda _, error: _json({"detail": str(error)}, status)


# who may ask ----------------------------------------------------------------------------------------------------------

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Guard:
    """Lets requests through that may ask, are small and arrive in time, and counts
    them.
    """

    def __init__(
        self, app: Any, metrics: ServerMetrics, token: str | None, only_local: bool
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._only_local = only_local
        self._wanted = f"Bearer {token}".encode() if token is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        began = asyncio.get_running_loop().time()
        status = int(HTTPStatus.GATEWAY_TIMEOUT)
        started = False

        async def counted(message: MutableMapping[str, Any]) -> None:
            nonlocal status, started
            if message["type"] == "http.response.start":
                status = message["status"]
                started = True
                message["headers"] = [*message["headers"], *SAFE_HEADERS]
            await send(message)

        refusal = self._refusal(scope, headers)
        try:
            if refusal is not None:
                await _json({"detail": refusal[1]}, refusal[0])(scope, receive, counted)
            else:
                async with asyncio.timeout(REQUEST_S):
                    await self._app(scope, _limited(receive), counted)
        except TimeoutError:
            if not started:
                why = {"detail": f"it took longer than {REQUEST_S:g} s"}
                await _json(why, HTTPStatus.REQUEST_TIMEOUT)(scope, receive, counted)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.answered(
                route, status, asyncio.get_running_loop().time() - began
            )

    def _refusal(
        self, scope: Scope, headers: dict[bytes, bytes]
    ) -> tuple[HTTPStatus, str] | None:
        host = headers.get(b"host", b"").decode("latin-1")
        origin = headers.get(b"origin", b"").decode("latin-1")
        if self._only_local and host and not is_local(host):
            return (
                HTTPStatus.MISDIRECTED_REQUEST,
                "this is for local names only, such as 127.0.0.1; see --host",
            )
        if (
            origin
            and scope["method"] not in ("GET", "HEAD")
            and urlsplit(origin).netloc != host
        ):
            return HTTPStatus.FORBIDDEN, "pages of other servers may not write here"
        given = headers.get(b"authorization", b"")
        needs_token = self._wanted is not None and scope["path"] not in OPEN_PATHS
        if needs_token and not hmac.compare_digest(given, self._wanted or b""):
            return (
                HTTPStatus.UNAUTHORIZED,
                "this server needs its token: Authorization: Bearer TOKEN",
            )
        if int(headers.get(b"content-length", b"0") or 0) > MAX_BODY_BYTES:
            return (
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"at most {MAX_BODY_BYTES:,} bytes",
            )
        return None


def _limited(receive: Receive) -> Receive:
    seen = 0

    async def limited() -> MutableMapping[str, Any]:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > MAX_BODY_BYTES:
            raise HTTPException(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"at most {MAX_BODY_BYTES:,} bytes",
            )
        return message

    return limited


SAFE_HEADERS = [
    (name.lower().encode(), value.encode()) for name, value in HEADERS.items()
]
