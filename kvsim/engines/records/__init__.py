"""Records of all engines together."""
