"""Step-time and memory constants from the log and the benchmark files of a server of the user's."""
