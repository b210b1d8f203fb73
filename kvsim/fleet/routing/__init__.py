"""Routers, and their views of replicas."""
