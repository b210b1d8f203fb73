"""Fleets: the event loop, the routing of requests to replicas, and whole runs."""
