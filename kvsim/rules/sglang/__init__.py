"""SGLang's rules: its slots, its radix tree and its scheduler; docs/sglang-rules.md tells them."""
