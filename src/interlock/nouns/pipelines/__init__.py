"""Pipelines: phases that follow each other, each behind its guards."""
