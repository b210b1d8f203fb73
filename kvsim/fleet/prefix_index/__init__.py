"""Which replica holds which prefix: indices, and the events that fill them."""
