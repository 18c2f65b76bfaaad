"""The calls of tasks, which both clients offer."""

from __future__ import annotations

from interlock.nouns.tasks.claim_calls import TaskClaimCalls
from interlock.nouns.tasks.publish_calls import TaskPublishCalls
from interlock.nouns.tasks.view_calls import TaskViewCalls
from interlock.runtime.calls import D


class TaskCalls(TaskPublishCalls[D], TaskClaimCalls[D], TaskViewCalls[D]):
    """Tasks, by name."""
