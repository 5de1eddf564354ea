"""docs/algorithms.md describes the algorithms of the table: all of them, and no others.

By comparing the names in the sources of the table with those in the document's tables.
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENTRY = re.compile(r'\bAlgorithm\{\s*"(\w+)"')
# In a table's first column, or a paragraph's first word.
DESCRIBED = re.compile(r"^(?:\| )?((?:`\w+`(?:, )?)+)(?: \||:)", re.MULTILINE)


def test_every_algorithm_of_the_table_is_described():
    sources = (ROOT / "collectives" / "algorithms").glob("*.cc")
    table = {name for source in sources for name in ENTRY.findall(source.read_text())}
    assert len(table) > 40
    text = (ROOT / "docs" / "algorithms.md").read_text()
    described = {name for names in DESCRIBED.findall(text) for name in re.findall(r"\w+", names)}
    assert sorted(table - described) == []
    assert sorted(described - table) == []
