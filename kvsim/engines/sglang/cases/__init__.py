"""Recorded schedules of SGLang, and operations on its radix tree."""
