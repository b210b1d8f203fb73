"""The routers, one per file."""
