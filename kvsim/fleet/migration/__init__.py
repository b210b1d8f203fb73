"""Requests that move between replicas."""
