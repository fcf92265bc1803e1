"""The store over a server in memory: the contract, and random interleavings."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from contracts.store_contract import StoreContract
from contracts.store_machine import StoreMachine, unhurried
from contracts.store_trainer import Backend
from hypothesis import settings

from streamer.cache_store.memory import MemoryServer
from streamer.cache_store.server import PAUSE_S, RESEED_S


class MemoryBackend:
    """One server that all trainers of a test share."""

    def __init__(self) -> None:
        self._server = MemoryServer()

    def connect(self, hard_log_length: int = 4096) -> MemoryServer:
        self._server._hard = hard_log_length
        return self._server

    def wipe(self) -> None:
        self._server.wipe()

    def age(self) -> None:
        self._server._origin = (*self._server._origin[:2], -RESEED_S)

    def resume(self) -> None:
        self._server._paused = ("", -PAUSE_S)

    def trainers(self) -> set[str]:
        return set(self._server._trainers)

    def copy(self) -> dict[str, Any]:
        return {name: copy.copy(value) for name, value in vars(self._server).items() if name != "_lock"}

    def restore(self, copied: dict[str, Any]) -> None:
        vars(self._server).update({name: copy.copy(value) for name, value in copied.items()})


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def backend(self) -> Backend:
        return MemoryBackend()


class MemoryMachine(StoreMachine):
    def backend(self) -> Backend:
        return MemoryBackend()


class MergingMachine(MemoryMachine):
    merging = True


TestInterleavings = MemoryMachine.TestCase
TestInterleavings.settings = settings(unhurried, max_examples=100, stateful_step_count=50)
TestBacklogs = MergingMachine.TestCase
TestBacklogs.settings = settings(unhurried, max_examples=50, stateful_step_count=50)
