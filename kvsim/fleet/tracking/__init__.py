"""What a fleet records of its requests while they are served."""
