"""The mutation script itself runs by name; here only that every rule it breaks is still there."""

import ast
from functools import cache
from pathlib import Path

import pytest
from mutation import COMPILED, MUTANTS, ROOT


@cache
def unchanged(path: Path) -> str:
    return ast.dump(ast.parse((ROOT / path).read_text()))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.rule)
def test_a_mutant_changes_one_place(mutant):
    assert ast.dump(ast.parse(mutant.source())) != unchanged(mutant.path)


def test_those_that_are_compiled_are_mutants():
    assert set(COMPILED) <= {mutant.rule for mutant in MUTANTS}
    assert len(set(COMPILED)) >= 10
