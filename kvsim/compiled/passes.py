"""The passes of Numba that compile a rule; unneeded ones are left out to save time.

Numba analyses the whole function again after each pass. A rule has no closure, no array expression
and no ``with``, and :mod:`kvsim.compiled.pruning` removes its dead branches.
"""

from __future__ import annotations

from typing import Any

from numba.core import compiler_machinery, typed_passes, untyped_passes
from numba.core.compiler import CompilerBase

UNTYPED = (
    *("TranslateByteCode", "FixupArgs", "IRProcessing", "GenericRewrites", "RewriteDynamicRaises"),
    *("InlineInlinables", "ReconstructSSA"),
)
TYPED = (
    *("NopythonTypeInference", "PreLowerStripPhis", "InlineOverloads"),
    *("IRLegalization", "AnnotateTypes", "NativeLowering", "NoPythonBackend"),
)


class RuleCompiler(CompilerBase):
    def define_pipelines(self) -> list[Any]:
        machinery: Any = compiler_machinery
        passes = machinery.PassManager("rule")
        for room, names in ((untyped_passes, UNTYPED), (typed_passes, TYPED)):
            for name in names:
                passes.add_pass(getattr(room, name), name)
        passes.finalize()
        return [passes]


#: Options for functions that only compiled code calls: no wrappers for C and Python.
WITHOUT_WRAPPERS = {"error_model": "numpy", "no_cfunc_wrapper": True, "no_cpython_wrapper": True}

#: Options for kvsim's rules; a user's rules may need Numba's other passes.
INNER: Any = {**WITHOUT_WRAPPERS, "pipeline_class": RuleCompiler}
