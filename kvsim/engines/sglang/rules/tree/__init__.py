"""Rules of SGLang's radix tree."""
