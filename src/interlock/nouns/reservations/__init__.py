"""Reservations of files: paths and globs of a repository that one agent edits at a time."""
