"""SGLang's KV-cache manager."""
