"""Records of a fleet's requests while they are served."""
