"""Processes that do a job's work and may hang or die without it."""
