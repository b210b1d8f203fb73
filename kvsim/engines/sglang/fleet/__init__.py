"""SGLang in fleets: replicas that read a store into their host memory."""
