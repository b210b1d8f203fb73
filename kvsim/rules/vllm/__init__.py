"""Rules of vLLM's scheduler and its optional features."""
