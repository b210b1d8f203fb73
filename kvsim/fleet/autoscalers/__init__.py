"""Autoscalers, one per file."""
