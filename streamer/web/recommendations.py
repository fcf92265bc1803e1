"""The HTTP side of a server: what can be asked about recommendations.

Nothing is computed on the event loop: it has to answer `/healthz` meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request, Response
from pydantic import BaseModel, Field

from streamer.errors import StreamerError
from streamer.serve.freshness import LAST_S
from streamer.serve.service import (
    MAX_IDS,
    MAX_K,
    Id,
    NotReady,
    RecommendRequest,
    Service,
    UnknownItem,
)
from streamer.web.app import error_response, json_response

MAX_BATCH = 16
"""Requests that are computed together."""
MAX_QUERIES = 100

IdPath = Annotated[str, Path(min_length=1, max_length=256)]
IdQuery = Annotated[Sequence[Id], Query(max_length=MAX_IDS)]
K = Annotated[int, Query(ge=1, le=MAX_K)]


class RecommendRequests(BaseModel):
    """Several requests at once."""

    queries: list[RecommendRequest] = Field(max_length=MAX_QUERIES)


class NearItem(BaseModel):
    """A recent item that made a recommendation."""

    item: str
    nearness: float


class RecommendedBecause(BaseModel):
    """What made a recommendation."""

    parts: dict[str, float] = Field(
        description="What each kind of evidence adds to the score."
    )
    recent: list[NearItem]


class RecommendedItem(BaseModel):
    """A recommended item."""

    item: str
    score: float
    recent: bool
    reasons: RecommendedBecause | None = None


class Recommendations(BaseModel):
    """An answer, of one generation and step of the model."""

    user: str | None
    known: bool
    note: str | None
    recent: list[str] = Field(
        description="The recent items that it is based on, most recent first."
    )
    items: list[RecommendedItem]
    titles: dict[str, str] = Field(
        description="What people call the items above, of those that have a title."
    )
    generation: int
    step: int
    age_s: float


class RecommendationsOfSeveral(BaseModel):
    """Answers in the order of the queries, all of one generation."""

    answers: list[Recommendations]


class HiddenItems(BaseModel):
    """Items that are never recommended."""

    hidden: list[str]


class Click(BaseModel):
    """What a visitor of the page did."""

    user: Id
    item: Id


class RequestBatcher:
    """Computes recommendations on a thread of its own; requests that wait at the same
    time are computed together, which costs less than one by one.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._thread = ThreadPoolExecutor(1, "recommend")
        self._waiting: list[tuple[RecommendRequest, asyncio.Future[Any]]] = []
        self._task: asyncio.Task[None] | None = None

    async def recommend(self, request: RecommendRequest) -> dict[str, Any]:
        """See `Service.recommend`."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, answer))
        if self._task is None:
            self._task = asyncio.create_task(self._compute_waiting())
        found: dict[str, Any] = await answer
        return found

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The result of a function that is called on the thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, function, *arguments)

    async def _compute_waiting(self) -> None:
        while self._waiting:
            batch = self._waiting[:MAX_BATCH]
            del self._waiting[:MAX_BATCH]
            await self._compute(batch)
        self._task = None

    async def _compute(
        self, batch: list[tuple[RecommendRequest, asyncio.Future[Any]]]
    ) -> None:
        requests = [request for request, _ in batch]
        results: Sequence[Any]
        try:
            results = await self.run(self._service.recommend_all, requests)
        except Exception as error:  # each of them has a client that waits
            results = [error] * len(batch)
        for (_, answer), result in zip(batch, results, strict=True):
            if answer.cancelled():
                continue
            if isinstance(result, Exception):
                answer.set_exception(result)
            else:
                answer.set_result(result)


def add_recommendations(app: FastAPI, service: Service) -> None:
    """Serve recommendations for users and sessions, and of items."""
    batcher = RequestBatcher(service)

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
        request = RecommendRequest.model_construct(
            user=user,
            k=k,
            exclude_seen=exclude_seen,
            exclude=exclude,
            explain=explain,
        )
        return json_response(await batcher.recommend(request))

    @app.post("/recommendations", response_model=Recommendations)
    async def for_session(request: RecommendRequest) -> Response:
        """The best items for a session of recent items, or for a user."""
        return json_response(await batcher.recommend(request))

    @app.post("/recommendations/batch", response_model=RecommendationsOfSeveral)
    async def for_several(requests: RecommendRequests) -> Response:
        """Several at once, answered by one step of the model; one that cannot be
        answered has an `error`.
        """
        answers = await batcher.run(service.recommend_all, requests.queries)
        for k, answer in enumerate(answers):
            if isinstance(answer, StreamerError):
                answers[k] = {"error": str(answer)}
        return json_response({"answers": answers})

    @app.get("/items/{item:path}/similar", response_model=Recommendations)
    async def similar(item: IdPath, k: K = 10, explain: bool = False) -> Response:
        """What users who had an item may like next."""
        return json_response(await batcher.run(service.similar, item, k, explain))

    _add_error(app, NotReady, HTTPStatus.SERVICE_UNAVAILABLE)
    _add_error(app, UnknownItem, HTTPStatus.NOT_FOUND)
    _add_error(app, StreamerError, HTTPStatus.CONFLICT)


def add_hidden_items(app: FastAPI, service: Service) -> None:
    """Serve the items that are never recommended."""
    hidden = service.hidden

    def hidden_response() -> Response:
        return json_response({"hidden": sorted(hidden.ids)})

    @app.get("/hidden", response_model=HiddenItems)
    def get_hidden() -> Response:
        """All hidden items."""
        return hidden_response()

    @app.put("/hidden/{item:path}", response_model=HiddenItems)
    def hide(item: IdPath) -> Response:
        """Never recommend an item, from the next answer on."""
        hidden.hide(item)
        return hidden_response()

    @app.delete("/hidden/{item:path}", response_model=HiddenItems)
    def show(item: IdPath) -> Response:
        """Recommend it again."""
        hidden.show(item)
        return hidden_response()


def add_status(
    app: FastAPI,
    service: Service,
    write_event: Callable[[str, str], None] | None = None,
) -> None:
    """Serve what is served, and take events in.

    Args:
        service: answers.
        write_event: writes an event of a user and an item to the stream; None if that
            is not allowed.
    """

    @app.get("/status")
    def status(last_s: Annotated[float, Query(gt=0)] = LAST_S) -> Response:
        """What is served, and how fresh it was in the last seconds."""
        ready, reason = service.ready()
        found = {"ready": ready, "reason": reason}
        if service.replica is not None:
            found |= service.about()
        found |= service.sizes()
        found["freshness"] = service.freshness.quantiles(time.time(), last_s)
        found["writes_events"] = write_event is not None
        return json_response(found)

    if write_event is None:
        return

    @app.post("/events", status_code=HTTPStatus.ACCEPTED)
    def click(event: Click) -> Response:
        """Write an event to the stream, as the page does when an item is clicked."""
        write_event(event.user, event.item)
        return json_response({"written": True}, HTTPStatus.ACCEPTED)


def _add_error(app: FastAPI, kind: type[Exception], status: HTTPStatus) -> None:
    def explain(_: Request, error: Exception) -> Response:
        return error_response(status, str(error))

    app.add_exception_handler(kind, explain)
