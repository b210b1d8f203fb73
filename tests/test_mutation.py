"""The mutation script itself runs by name; here only that every rule it breaks is still there."""

import pytest
from mutation import COMPILED, MUTANTS, ROOT


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.rule)
def test_a_mutant_changes_one_place(mutant):
    text = (ROOT / "kvsim" / mutant.file).read_text()
    assert text.count(mutant.line) == 1
    assert mutant.broken != mutant.line


def test_those_that_are_compiled_are_mutants():
    assert set(COMPILED) <= {mutant.rule for mutant in MUTANTS}
    assert len(set(COMPILED)) >= 10
