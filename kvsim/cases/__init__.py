"""Recorded schedules: vLLM's own, and those of any configuration, replayed step by step."""
