"""What compiled modules have to keep to."""

import ast

import pytest

from streams.host.compiling import HOT, PACKAGE


def names_of(node: ast.stmt) -> list[str]:
    """The constants that a statement sets; names of types begin with one capital."""
    if not isinstance(node, ast.Assign):
        return []
    names = [name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    return [name for name in names if len(name) > 1 and (name.isupper() or name.islower())]


@pytest.mark.parametrize("module", HOT)
def test_constants_of_compiled_modules_are_final(module: str) -> None:
    tree = ast.parse(PACKAGE.joinpath(*module.split(".")).with_suffix(".py").read_text())
    annotated = [node for node in tree.body if isinstance(node, ast.AnnAssign)]
    loose = [ast.unparse(node) for node in annotated if "Final" not in ast.unparse(node.annotation)]
    assert [*loose, *(name for node in tree.body for name in names_of(node))] == []
