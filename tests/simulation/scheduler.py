"""Threads of which one runs at a time, chosen by a seed, and a clock that moves when all of them wait.

`Scheduler.threading` and `Scheduler.time` stand in for the modules of the same names, as far as the product uses them.
Every thread belongs to a process, which can be stopped, woken and killed. A thread gives way where it waits, where it
takes a lock, and where it calls `pause`, as everything does that leaves the process.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

CALM = 0.85
"""How likely a thread goes on where it could give way."""


class Killed(BaseException):
    """Ends the threads of a process that is killed."""


class DeadlockError(AssertionError):
    """Every thread waits for another one."""


class Process:
    """Threads that live and die together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_stopped = False
        self.is_dead = False


class Task:
    """One thread, which runs while it has the baton."""

    def __init__(self, name: str, process: Process) -> None:
        self.name = name
        self.process = process
        self.baton = threading.Lock()
        self.baton.acquire()
        self.wake_at = -math.inf
        self.has_ended = False
        self.error: BaseException | None = None


class Scheduler:
    """Decides who runs next. The thread that makes it is the first task, of a process that never dies."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 1000.0
        self.driver = Process("driver")
        self.current = Task("driver", self.driver)
        self.tasks = [self.current]
        self.switches = 0
        self.threading = SimpleNamespace(
            Condition=lambda: Condition(self),
            Lock=lambda: Condition(self),
            Event=lambda: Event(self),
            Thread=lambda target, name="", daemon=True: Thread(self, target, name),
        )
        self.time = SimpleNamespace(
            monotonic=self.monotonic,
            perf_counter=self.monotonic,
            thread_time=self.monotonic,
            time=self.monotonic,
            sleep=self.sleep,
        )

    def monotonic(self) -> float:
        return self.now

    # what a thread does -----------------------------------------------------------------------------------------------

    def start(self, target: Callable[[], Any], name: str, process: Process) -> Task:
        """Have a process do something on a thread of its own."""
        task = Task(name, process)

        def run() -> None:
            task.baton.acquire()
            try:
                if not process.is_dead:
                    target()
            except Killed:
                pass
            except BaseException as error:
                task.error = error
            task.has_ended = True
            self.tasks.remove(task)
            self._choose().baton.release()

        threading.Thread(target=run, daemon=True).start()
        self.tasks.append(task)
        return task

    def sleep(self, seconds: float) -> None:
        """Wait until the clock has moved on."""
        self.wait_until(self.now + max(0.0, seconds))

    def wait_until(self, at: float) -> None:
        """Give way; who is to go on earlier sets `wake_at`."""
        self.check()
        task = self.current
        task.wake_at = at
        chosen = self._choose()
        if chosen is not task:
            chosen.baton.release()
            task.baton.acquire()
        if task.error is not None:
            raise task.error
        self.check()

    def pause(self) -> None:
        """Perhaps give way."""
        self.check()
        if self.random.random() > CALM:
            self.wait_until(self.now)

    def check(self) -> None:
        """A thread of a dead process goes no further."""
        if self.current.process.is_dead:
            raise Killed

    def _choose(self) -> Task:
        running = [task for task in self.tasks if not task.process.is_stopped]
        ready = [task for task in running if task.wake_at <= self.now]
        if not ready:
            self.now = min(task.wake_at for task in running)
            if self.now == math.inf:
                self.now = 0.0
                ready = [task for task in running if task.process is self.driver]
                ready[0].error = DeadlockError(f"all wait: {[task.name for task in running]}")
            else:
                ready = [task for task in running if task.wake_at <= self.now]
        self.switches += 1
        self.current = ready[0] if len(ready) == 1 else self.random.choice(ready)
        return self.current

    # what happens to processes ----------------------------------------------------------------------------------------

    def kill(self, process: Process) -> None:
        """Whatever it does, it ends here."""
        process.is_dead = True
        process.is_stopped = False
        tasks = [task for task in self.tasks if task.process is process]
        for task in tasks:
            task.wake_at = -math.inf
        while any(not task.has_ended for task in tasks):
            self.wait_until(self.now)

    def close(self) -> None:
        """End all processes."""
        for process in {task.process for task in self.tasks if task.process is not self.driver}:
            self.kill(process)


class Condition:
    """A condition, and a lock; it may be taken several times by one thread."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._owner: Task | None = None
        self._depth = 0
        self._waiting: list[Task] = []
        self._blocked: list[Task] = []

    def __enter__(self) -> bool:
        self._scheduler.pause()
        self._take()
        return True

    def __exit__(self, *_: object) -> None:
        if self._owner is self._scheduler.current:  # it is not, if it was killed while it waited
            self._depth -= 1
            if not self._depth:
                self._give_back()

    def _take(self) -> None:
        task = self._scheduler.current
        while self._owner not in (None, task):
            self._blocked.append(task)
            self._scheduler.wait_until(math.inf)
        self._owner = task
        self._depth += 1

    def _give_back(self) -> None:
        self._owner = None
        _wake(self._blocked)

    def notify_all(self) -> None:
        _wake(self._waiting)

    def wait(self, timeout: float | None = None) -> None:
        depth = self._depth
        self._depth = 0
        self._give_back()
        self._waiting.append(self._scheduler.current)
        self._scheduler.wait_until(self._deadline(timeout))
        self._take()
        self._depth = depth

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        deadline = self._deadline(timeout)
        while not (found := predicate()) and self._scheduler.now < deadline:
            self.wait(deadline - self._scheduler.now)
        return found

    def _deadline(self, timeout: float | None) -> float:
        return math.inf if timeout is None else self._scheduler.now + max(0.0, timeout)


def _wake(tasks: list[Task]) -> None:
    for task in tasks:
        task.wake_at = -math.inf
    tasks.clear()


class Event:
    """A flag to wait for."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._changed = Condition(scheduler)
        self._flag = False

    def is_set(self) -> bool:
        return self._flag

    def set(self) -> None:
        self._flag = True
        self._changed.notify_all()

    def clear(self) -> None:
        self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        with self._changed:
            self._changed.wait_for(self.is_set, timeout)
        return self._flag


class Thread:
    """A thread of the process that starts it."""

    def __init__(self, scheduler: Scheduler, target: Callable[[], Any], name: str) -> None:
        self._scheduler, self._target, self._name = scheduler, target, name
        self._task: Task | None = None

    def start(self) -> None:
        process = self._scheduler.current.process
        self._task = self._scheduler.start(self._target, f"{process.name} {self._name}", process)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.has_ended

    def join(self, timeout: float | None = None) -> None:
        deadline = math.inf if timeout is None else self._scheduler.now + timeout
        while self.is_alive() and self._scheduler.now < deadline:
            self._scheduler.wait_until(min(deadline, self._scheduler.now + 0.1))
