"""The state of a replica, declared once: Python classes and the memory of compiled code."""
