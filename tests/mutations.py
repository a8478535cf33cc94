"""How strong the tests are: changes of `streams/` by a seed, each of which a test should notice.

    python -m tests.mutations [--seed N] [--count N] [--json FILE]

First the tests of `make check` run once over sources that note which of the chosen places each test passes;
then each change is tried with the tests that pass it, until one fails. Prints what survived. Places that no
such test passes, those that only a stack reaches, are counted apart. Runs in a copy of the checkout.
"""

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
#: Not part of what the tests hold: the fakes, and what prepares this machine.
SKIPPED = ("streams/testing/", "streams/local/")
CHECK = ("-m", "not stack and not slow and not verify", "tests/unit", "tests/lane", "tests/contract")
PYTEST = (
    *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore"),
    "--hypothesis-profile=check",
)
#: Seconds for the tests of one change, after which it has been noticed: it made something hang.
PATIENCE = 180
#: Tests tried for one change, and how many of them first: those that pass the fewest of the places.
MOST, FEW = 400, 30

FLIPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And, ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv,
}  # fmt: skip

HITS = """
import os
_seen = set()
def hit(number):
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    if test and (number, test) not in _seen:
        _seen.add((number, test))
        with open(os.environ["MUTATION_HITS"], "a") as file:
            file.write(f"{number}\\t{test}\\n")
"""


class Place(NamedTuple):
    """A node of a file that can be changed, by its number in the order of `ast.walk`."""

    file: str
    node: int
    line: int
    text: str


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, default=26)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    places = chosen(options.seed, options.count)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv", "var", "build", "dist"))
        results = tried(places, copy)
    counts = {name: sum(each == name for each in results) for name in ("noticed", "survived", "not reached")}
    for place, result in zip(places, results, strict=True):
        if result != "noticed":
            print(f"{result}: {place.file}:{place.line}: {place.text}")
    print(f"seed {options.seed}: {counts}")
    if options.json:
        found = [{**place._asdict(), "result": result} for place, result in zip(places, results, strict=True)]
        options.json.write_text(json.dumps(found, indent=1))
    return 0


def chosen(seed: int, count: int) -> list[Place]:
    """Places at random over all of them: those whose digests are smallest, so that a change elsewhere in the
    sources leaves them chosen.
    """
    files = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "streams").rglob("*.py"))
    ranked, before = [], Counter[tuple[str, str]]()
    for place in (place for file in files if not file.startswith(SKIPPED) for place in places_of(file)):
        name = (place.file, place.text)
        before[name] += 1
        ranked.append((sha256(f"{seed}:{name}:{before[name]}".encode()).digest(), place))
    return sorted(place for _, place in sorted(ranked)[:count])


def places_of(file: str) -> Iterator[Place]:
    tree = ast.parse((ROOT / file).read_text())
    inside = {id(n) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)
              for part in f.body for n in ast.walk(part)}  # fmt: skip
    for number, node in enumerate(ast.walk(tree)):
        if id(node) in inside and (how := change(node)):
            yield Place(file, number, getattr(node, "lineno", 0), how)


def change(node: ast.AST, *, make: bool = False) -> str:
    """How a node would be changed, in words; empty where it cannot be. `make` does it."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in FLIPS:
        old, new = node.ops[0], FLIPS[type(node.ops[0])]
        if make:
            node.ops[0] = new()  # type: ignore[assignment]
        return f"{type(old).__name__} -> {new.__name__} in {ast.unparse(node)[:70]}"
    if isinstance(node, ast.BoolOp | ast.BinOp) and type(node.op) in FLIPS:
        old, new = node.op, FLIPS[type(node.op)]
        said = f"{type(old).__name__} -> {new.__name__} in {ast.unparse(node)[:70]}"
        if make:
            node.op = new()  # type: ignore[assignment]
        return said
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        said = f"not ({ast.unparse(node.test)[:70]})"
        if make:
            node.test = ast.UnaryOp(ast.Not(), node.test)
        return said
    if isinstance(node, ast.Constant) and (isinstance(node.value, bool) or type(node.value) is int):
        said = f"{node.value} changed"
        if make:
            node.value = not node.value if isinstance(node.value, bool) else node.value + 1
        return said
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await):
        said = f"without {ast.unparse(node)[:70]}"
        if make:
            node.value = ast.Constant(None)
        return said
    return ""


def tried(places: Sequence[Place], copy: Path) -> list[str]:
    """What became of each change."""
    hits = hits_of(places, copy)
    results = []
    for number, place in enumerate(places):
        tests = hits.get(number, [])[:MOST]
        result = "not reached" if not tests else "survived"
        if tests:
            source = copy / place.file
            before = source.read_text()
            source.write_text(mutated(before, place.node))
            # Most changes are noticed by the first few: naming hundreds of tests takes pytest seconds.
            if not all(passes(part, copy) for part in (tests[:FEW], tests[FEW:]) if part):
                result = "noticed"
            source.write_text(before)
        print(f"{number + 1}/{len(places)} {result}: {place.file}:{place.line}", file=sys.stderr, flush=True)
        results.append(result)
    return results


def mutated(source: str, number: int) -> str:
    tree = ast.parse(source)
    change(list(ast.walk(tree))[number], make=True)
    return ast.unparse(ast.fix_missing_locations(tree))


def passes(tests: Sequence[str], copy: Path) -> bool:
    listed = copy / "tests.txt"
    listed.write_text("\n".join(tests))
    command = [*PYTEST, "-x", "--tb=no", f"@{listed}"]
    try:
        done = subprocess.run(command, cwd=copy, timeout=PATIENCE, capture_output=True, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def hits_of(places: Sequence[Place], copy: Path) -> dict[int, list[str]]:
    """The tests that pass each place, those that pass fewest places first."""
    log = copy / "hits.tsv"
    log.touch()
    (copy / "mutation_hits.py").write_text(HITS)
    originals = {}
    for file in {place.file for place in places}:
        originals[file] = (copy / file).read_text()
        numbers = {place.node: i for i, place in enumerate(places) if place.file == file}
        (copy / file).write_text(noting(originals[file], numbers))
    command = [*PYTEST, "-n", "2", "--dist", "loadfile", "--tb=no", "-rfE", *CHECK]
    environment = {**os.environ, "MUTATION_HITS": str(log), "PYTHONPATH": str(copy)}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    print(done.stdout[-2000:], file=sys.stderr, flush=True)
    failed = set(re.findall(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", done.stdout, re.MULTILINE))
    for file, text in originals.items():
        (copy / file).write_text(text)
    found: dict[int, dict[str, None]] = {}
    for line in log.read_text().splitlines():
        number, _, test = line.partition("\t")
        if test not in failed:  # it reads sources
            found.setdefault(int(number), {})[test] = None
    weight: dict[str, int] = {}
    for tests in found.values():
        for test in tests:
            weight[test] = weight.get(test, 0) + 1
    return {number: sorted(tests, key=lambda test: weight[test]) for number, tests in found.items()}


def noting(source: str, numbers: dict[int, int]) -> str:
    """The source with a note before each statement that has one of the places in it."""
    tree = ast.parse(source)
    wanted = {id(node): numbers[i] for i, node in enumerate(ast.walk(tree)) if i in numbers}

    class Noting(ast.NodeTransformer):
        def generic_visit(self, node: ast.AST) -> ast.AST:
            super().generic_visit(node)
            for name in ("body", "orelse", "finalbody"):
                body = getattr(node, name, None)
                if isinstance(body, list):
                    setattr(node, name, [new for old in body for new in (*notes(old), old)])
            return node

    def notes(statement: ast.stmt) -> Iterator[ast.stmt]:
        inner = [
            n for name in ("body", "orelse", "finalbody", "handlers") for n in getattr(statement, name, [])
        ]
        below = {id(each) for n in inner for each in ast.walk(n)}
        for each in ast.walk(statement):
            if id(each) in wanted and id(each) not in below:
                call = f"__import__('mutation_hits').hit({wanted.pop(id(each))})"
                yield ast.parse(call).body[0]

    return ast.unparse(ast.fix_missing_locations(Noting().visit(tree)))


if __name__ == "__main__":
    sys.exit(main())
