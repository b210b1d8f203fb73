"""Schedulers: who computes what in each step."""
