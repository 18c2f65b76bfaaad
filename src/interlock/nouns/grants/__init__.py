"""Locks, semaphores, and several of them at once: one noun with three names for users."""
