"""Step-time and memory constants from the log and benchmark files of a user's server."""
