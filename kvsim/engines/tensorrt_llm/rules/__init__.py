"""TensorRT-LLM's rules, as far as they are not those of vLLM's loop."""
