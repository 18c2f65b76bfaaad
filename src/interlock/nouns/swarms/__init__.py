"""Swarms: fleets with stores of their own that work together by signed envelopes."""
