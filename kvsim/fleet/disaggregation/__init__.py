"""Disaggregated prefill: policies, handoffs and KV transfers."""
