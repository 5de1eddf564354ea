"""Goal: each style rule finds its breach and lets a clean tree and the allowed places pass.
Method: plants one breach at a time in a small clean tree."""

import pathlib

import cpp_text
import pytest
import tidy

LONG_BODY = "void f(int x) {\n" + "  ++x;\n" * 70 + "}\n"


@pytest.fixture
def clean(tree):
    """As `tree`, without the dead header that the small tree has."""
    tree("collectives/user.cc", '#include "schedule/step.h"\n')
    return tree


def findings(tree, name, text):
    return tidy.check(tree(name, text))


def test_the_repository_is_tidy():
    assert tidy.check(pathlib.Path(tidy.__file__).parent.parent) == []


def test_a_clean_tree_passes(clean):
    assert tidy.check(clean("base/x.cc", "void f() {}\n")) == []


@pytest.mark.parametrize("name, text, part", [
    ("base/x.cc", "// " + "x" * 98 + "\n", "101 columns"),
    ("base/x.py", "X = '" + "x" * 98 + "'\n", "columns"),
    ("base/x.cc", "\n" * 601, "601 lines, at most 600"),
    ("tests/base/x_test.cc", "\n" * 801, "801 lines, at most 800"),
    ("base/x.cc", LONG_BODY, "function has 72 lines"),
    ("base/x.cc", f"namespace a {{\nclass B {{\n public:\n  {LONG_BODY}}};\n}}\n", "72 lines"),
    ("tools/x.py", "def f(x):\n" + "    x += 1\n" * 70, "function f has 71 lines"),
    ("base/x.cc", "auto x = std::getenv(name);\n", "getenv"),
    ("base/x.cc", "std::cout << 1;\n", "stdout"),
    ("base/x.cc", "std::printf(text);\n", "stdout"),
    ("base/x.cc", "assert(x);\n", "ISTHMUS_CHECK"),
    ("base/x.cc", "using namespace std;\n", "using-namespace"),
    ("tests/base/x_test.cc", "std::this_thread::sleep_for(1ms);\n", "sleep"),
    ("tests/python/x_test.py", "import time\ntime.sleep(1)\n", "sleep"),
    ("base/x.cc", "int* x = new int(3);\n", "naked-new"),
    ("base/x.cc", "delete x;\n", "naked-new"),
    ("base/x.cc", "delete[] x;\n", "naked-new"),
    ("docs/x.md", "# x\nTODO: more\n", "unfinished"),
    ("docs/x.md", "# x\nsee /root/x\n", "machine-path"),
    ("docs/x.md", "# x\nISTHMUS_LIMTI_S=3\n", "ISTHMUS_LIMTI_S is not in base/env.def"),
    ("docs/x.md", "# x\n# y\n", "2 titles"),
    ("docs/x.md", "x\n", "0 titles"),
    ("base/README.md", "# x\n" + "line\n" * 40, "README has 41 lines"),
    ("base/dead.h", "#pragma once\n", "no file includes this header"),
])
def test_a_planted_breach_is_found(clean, name, text, part):
    found = findings(clean, name, text)
    assert len(found) == 1, found
    assert found[0].startswith(name + ":") and part in found[0]


@pytest.mark.parametrize("name, text", [
    ("base/env.cc", "auto x = std::getenv(name);\n"),
    ("tools/x.cc", "std::cout << 1;\n"),
    ("base/x.cc", "// getenv and assert(x) and new int in a comment\n"),
    ("base/x.cc", 'auto x = "using namespace std;";\n'),
    ("base/x.cc", "Fd(const Fd&) = delete;\nstatic_assert(true);\nnew (place) Fd();\n"),
    ("base/x.cc", "std::unique_ptr<Fd> x(new Fd);\nreturn std::unique_ptr<Fd>(new Fd(1));\n"),
    ("base/x.cc", "#include <new>\nstd::fprintf(stderr, text);\nconst int news = 1'000'000;\n"),
    ("base/x.h", '#pragma once\n#define ISTHMUS_API 1\n#include "base/x.h"\n'),
    ("docs/x.md", "# x\nTODO(#12), ISTHMUS_LIMIT_S\n```\n# a comment\n```\n"),
    ("README.md", "# x\n" + "line\n" * 100),
    ("base/x.cc", "void f() {\n" + "  ++x;\n" * 68 + "}\n"),
])
def test_what_is_allowed_passes(clean, name, text):
    assert findings(clean, name, text) == []


def test_functions_are_told_from_scopes_and_initialisers():
    text = """
namespace a {
struct alignas(64) Line {
  int x = 0;
};
class B : public C {
 public:
  explicit B(int x) : x_{x}, y_(x) {
    run([](int y) { return y; });
  }

  int get() const noexcept { return x_; }

 private:
  int x_{3};
};
enum class E { kOne, kTwo };
constexpr int kTable[] = {1, 2};
void call(Options options = {}) {
  if (true) {
  }
}
}  // namespace a
"""
    names = [header.split("(")[0].split()[-1] for _, _, header in cpp_text.functions(text)]
    assert names == ["B", "get", "call"]
    assert [(first, last) for first, last, _ in cpp_text.functions(text)] == [
        (8, 10), (12, 12), (19, 22)]
