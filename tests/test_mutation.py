"""The mutation script itself runs by name; here only that every rule it breaks is still there."""

import ast
from functools import cache
from pathlib import Path

from mutation import COMPILED, MUTANTS, ROOT


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text())


def test_every_mutant_changes_one_place():
    places = {mutant.rule: len(mutant.places(tree_of(mutant.path))) for mutant in MUTANTS}
    assert not {rule: number for rule, number in places.items() if number != 1}


def test_every_mutant_changes_the_code():
    as_before = [
        mutant.rule
        for mutant in MUTANTS
        if ast.dump(ast.parse(mutant.code)) == ast.dump(ast.parse(mutant.broken))
    ]
    assert not as_before


def test_its_source_is_the_module_with_the_place_changed():
    for mutant in MUTANTS[::50]:
        assert ast.unparse(tree_of(mutant.path)) != mutant.source()


def test_each_mutant_has_a_name_of_its_own():
    assert len({mutant.rule for mutant in MUTANTS}) == len(MUTANTS)


def test_those_that_are_compiled_are_mutants():
    assert set(COMPILED) <= {mutant.rule for mutant in MUTANTS}
    assert len(set(COMPILED)) >= 10
