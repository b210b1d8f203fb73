"""Recorded schedules, of vLLM itself or of any configuration, replayed step by step."""
