"""Rules of SGLang's host tier and storage."""
