"""SGLang's rules: slots, radix tree and scheduler; docs/sglang-rules.md describes them."""
