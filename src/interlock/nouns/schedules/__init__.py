"""Schedules: tasks that are published again and again."""
