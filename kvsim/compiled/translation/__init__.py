"""Translation of rules to LLVM's language, without Numba's analysis of types (D161).

Rules are annotated and checked by mypy, so that the annotations give every type. One module of text
holds a whole variant; LLVM compiles it by the options of Numba (``compiled.machine``).
"""
