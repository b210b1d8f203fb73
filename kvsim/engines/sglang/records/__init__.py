"""Records of SGLang's scheduler, radix tree and storage."""
