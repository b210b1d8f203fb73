"""The passes of Numba that compile a rule: all that its plain text needs, and no more.

A rule has no closure, no array expression and no ``with``, and :mod:`kvsim.compiled.pruning` takes
its dead branches. After each of Numba's passes the whole function is analysed anew.
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


#: How functions compile that only compiled code calls: without wrappers for C and Python.
WITHOUT_WRAPPERS = {"error_model": "numpy", "no_cfunc_wrapper": True, "no_cpython_wrapper": True}

#: How rules of kvsim compile; a user's may need Numba's other passes.
INNER: Any = {**WITHOUT_WRAPPERS, "pipeline_class": RuleCompiler}
