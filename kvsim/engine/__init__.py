"""The SimPy world, replicas and routers; the Python backend."""
