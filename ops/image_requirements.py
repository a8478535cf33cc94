"""Print the lines of requirements.txt, with hashes, that an extra of the project and further packages need.

    python ops/image_requirements.py orders > image.txt

pip-tools has written below each package which others want it (`# via`). Needs nothing but Python 3.11.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def name_of(requirement: str) -> str:
    """The normalized name of a package at the beginning of a requirement."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else ""


def direct(project: dict, extra: str) -> set[str]:
    """The packages that the project and one of its extras name."""
    found = {name_of(each) for each in project["dependencies"]}
    for each in project["optional-dependencies"][extra]:
        if each.startswith("steadfaust["):
            for other in each.removeprefix("steadfaust[").rstrip("]").split(","):
                found |= direct(project, other)
        else:
            found.add(name_of(each))
    return found


def blocks(text: str) -> dict[str, str]:
    """The lines of each package in a file of pip-tools."""
    parts = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)
    return {name_of(each): each for each in parts if name_of(each)}


def wanted_by(block: str) -> set[str]:
    """The packages that want the one of these lines."""
    _, _, via = block.partition("# via")
    return {name_of(line.strip(" #")) for line in via.splitlines()}


def needed(found: dict[str, str], names: set[str]) -> set[str]:
    """These packages, and what they need."""
    while more := {each for each, block in found.items() if wanted_by(block) & names} - names:
        names = names | more
    return names


def main() -> None:
    """Print the lines for the extra that the first argument names, and further packages."""
    extra, *further = sys.argv[1:]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = blocks((ROOT / "requirements.txt").read_text())
    names = needed(found, direct(project, extra) | set(further))
    sys.stdout.write("".join(found[each] for each in sorted(names & found.keys())))


if __name__ == "__main__":
    main()
