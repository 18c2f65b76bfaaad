"""The record: reading, verifying, sealing, exporting and anchoring it."""
