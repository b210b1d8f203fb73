"""Schedulers: the requests and tokens that each step computes."""
