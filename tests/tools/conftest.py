"""Puts tools/ on the import path and gives tests a small tree of their own."""

import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))


@pytest.fixture
def tree(tmp_path):
    """Returns plant(path, text): writes a file below a root that holds a legal small tree."""

    def plant(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return tmp_path

    plant("base/CMakeLists.txt", "isthmus_module(base THIRD_PARTY fmt::fmt)\n")
    plant("base/env.def", 'ENV_INT(LIMIT_S, 600, 1, 900, "A limit, in seconds.")\n')
    plant("base/fd.h", "#pragma once\n")
    plant("base/fd.cc", '#include "base/fd.h"\n')
    plant("transport/CMakeLists.txt", "isthmus_module(transport DEPS base SUBDIRS shm tcp)\n")
    plant("transport/shm/lane.h", '#pragma once\n#include "base/fd.h"\n')
    plant("transport/tcp/link.cc", '#include "base/fd.h"\n')
    plant("schedule/CMakeLists.txt", "isthmus_module(schedule DEPS base transport)\n")
    plant("schedule/step.h", "#pragma once\n")
    plant("collectives/CMakeLists.txt",
          "# the top\nisthmus_module(collectives\n  DEPS base transport schedule\n"
          "  SUBDIRS algorithms)\n")
    plant("collectives/algorithms/ring.cc", '#include "schedule/step.h"\n')
    plant("tests/base/fd_test.cc", '#include "transport/shm/lane.h"\n')
    return plant
