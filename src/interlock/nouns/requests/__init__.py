"""Requests: work that an agent of one swarm asks of another swarm, signed and answered once."""
