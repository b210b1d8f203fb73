"""Rules of the time of a step that few configurations have."""
