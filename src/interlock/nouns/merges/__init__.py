"""Merges: branches that wait to be merged into a target, one after the other, behind a guard."""
