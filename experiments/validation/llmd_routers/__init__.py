"""Routers of llm-d, measured with inference-perf."""
