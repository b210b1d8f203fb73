"""The schedulers that vLLM is compared with: of Orca, static batches, and vLLM before V1."""
