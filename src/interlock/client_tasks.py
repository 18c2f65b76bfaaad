"""Tasks for programs that may block."""

from __future__ import annotations

from interlock.client import Noun, blocking
from interlock.services.task.calls import TaskCalls


class Tasks(Noun[TaskCalls]):
    """Tasks, by name."""

    publish = blocking(TaskCalls.publish)
    publish_all = blocking(TaskCalls.publish_all)
    claim = blocking(TaskCalls.claim)
    next = blocking(TaskCalls.next)
    complete = blocking(TaskCalls.complete)
    fail = blocking(TaskCalls.fail)
    release = blocking(TaskCalls.release)
    heartbeat = blocking(TaskCalls.heartbeat)
    cancel = blocking(TaskCalls.cancel)
    retry = blocking(TaskCalls.retry)
    list = blocking(TaskCalls.list)
    show = blocking(TaskCalls.show)
