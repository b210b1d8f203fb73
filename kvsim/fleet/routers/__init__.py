"""The routers, one file each."""
