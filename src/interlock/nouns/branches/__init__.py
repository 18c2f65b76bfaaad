"""Branches: alerts when one moves, and worktrees that follow it."""
