"""TensorRT-LLM's rules that differ from vLLM's loop."""
