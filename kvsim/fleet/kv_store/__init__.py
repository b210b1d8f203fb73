"""KV stores that replicas share."""
