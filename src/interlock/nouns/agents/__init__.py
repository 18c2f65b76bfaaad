"""Agents: their sessions, what they report, and their logs."""
