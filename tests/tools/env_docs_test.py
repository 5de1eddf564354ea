"""Goal: docs/env.md follows base/env.def. Method: small tables, and the repository's own page."""

import pathlib

import env_docs
import pytest


def test_the_page_is_up_to_date():
    root = pathlib.Path(env_docs.__file__).parent.parent
    assert (root / "docs" / "env.md").read_text() == env_docs.render(
        (root / "base" / "env.def").read_text())


def test_rows_follow_the_table():
    page = env_docs.render('// a comment\nENV_INT(A_S, 6, 1, 9, "Limit (s), "\n  "joined | cut.")\n'
                           'ENV_FLAG(B, true, "Flag.")\nENV_TEXT(C, "", "Text.")\n')
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert rows == ["| `ISTHMUS_A_S` | integer, 1 to 9 | `6` | Limit (s), joined \\| cut. |",
                    "| `ISTHMUS_B` | 0 or 1 | `1` | Flag. |",
                    "| `ISTHMUS_C` | text | empty | Text. |"]


def test_a_broken_row_is_refused():
    with pytest.raises(ValueError, match="has 2 arguments, expected 3"):
        env_docs.read_rows('ENV_FLAG(B, "Flag.")')
    with pytest.raises(ValueError, match="expected one of"):
        env_docs.read_rows('ENV_REAL(B, 1, "x")')
