"""Closed-form memory arithmetic: KV layout, groups, weights, budget, capacity."""
