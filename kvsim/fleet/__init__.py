"""Many replicas: the world they run in, who serves which request, and whole runs."""
