"""Routers, and what they know of replicas."""
