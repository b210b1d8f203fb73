"""The mutation script itself runs by name; here only that every rule it breaks is still there."""

import ast
from functools import cache
from pathlib import Path

import pytest
from mutation import COMPILED, MUTANTS, ROOT


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text())


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.rule)
def test_a_mutant_changes_one_place(mutant):
    assert len(mutant.places(tree_of(mutant.path))) == 1
    assert ast.dump(ast.parse(mutant.code)) != ast.dump(ast.parse(mutant.broken))


def test_its_source_is_the_module_with_the_place_changed():
    for mutant in MUTANTS[::50]:
        assert ast.unparse(tree_of(mutant.path)) != mutant.source()


def test_each_mutant_has_a_name_of_its_own():
    assert len({mutant.rule for mutant in MUTANTS}) == len(MUTANTS)


def test_those_that_are_compiled_are_mutants():
    assert set(COMPILED) <= {mutant.rule for mutant in MUTANTS}
    assert len(set(COMPILED)) >= 10
