"""TensorRT-LLM's scheduler."""
