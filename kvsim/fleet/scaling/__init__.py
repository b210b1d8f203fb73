"""Changes of a fleet's replicas: autoscaling, failures, cold starts."""
