"""Measured points of servers: read, simulated, fitted, compared."""
