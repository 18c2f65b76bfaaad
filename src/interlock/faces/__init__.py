"""The interfaces for people and programs: each is derived from the declared operations."""
