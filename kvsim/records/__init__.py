"""What a replica knows, declared once: Python classes and the memory of compiled code."""
