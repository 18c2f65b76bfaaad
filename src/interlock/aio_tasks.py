"""Tasks for event loops."""

from __future__ import annotations

from interlock.aio import Noun, awaited
from interlock.services.task.calls import TaskCalls


class Tasks(Noun[TaskCalls]):
    """Tasks, by name."""

    publish = awaited(TaskCalls.publish)
    publish_all = awaited(TaskCalls.publish_all)
    claim = awaited(TaskCalls.claim)
    next = awaited(TaskCalls.next)
    complete = awaited(TaskCalls.complete)
    fail = awaited(TaskCalls.fail)
    release = awaited(TaskCalls.release)
    heartbeat = awaited(TaskCalls.heartbeat)
    cancel = awaited(TaskCalls.cancel)
    retry = awaited(TaskCalls.retry)
    list = awaited(TaskCalls.list)
    show = awaited(TaskCalls.show)
