"""The live endpoint: an engine on the wall's clock, behind vLLM's HTTP protocol."""
