"""Training memory in closed form: bytes on one GPU, by component."""
