"""Replicas that come, go and fail: autoscaling, failures, cold starts."""
