"""Goal: a library whose own libraries are missing loads beside their stand-ins.
Method: builds a library on two others, one with symbol versions, and takes those away."""

import ctypes
import subprocess

import cuda_stand_ins
import elf
import pytest


def build(folder, name, text, *options):
    source = folder / "source.c"
    source.write_text(text)
    subprocess.run(["gcc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-Wl,--no-as-needed",
                    "-Wl,-z,now", "-Wl,-rpath,$ORIGIN", "-o", str(folder / name), str(source),
                    *map(str, options)], check=True, timeout=60)
    return folder / name


@pytest.fixture
def orphan(tmp_path):
    """A library that asks for two libraries which are gone."""
    (tmp_path / "versions.map").write_text("VERSION_7 { global: with_version; local: *; };\n")
    first = build(tmp_path, "libcufirst.so.7", "int with_version(void) { return 1; }",
                  f"-Wl,--version-script={tmp_path / 'versions.map'}")
    second = build(tmp_path, "libcusecond.so.7", "int without(void) { return 2; }")
    path = build(tmp_path, "liborphan.so", "int with_version(void), without(void), puts(const char "
                 "*);\nint sum(void) { puts(\"\"); return with_version() + without(); }\n",
                 first, second)
    first.unlink()
    second.unlink()
    return path


def test_stand_ins_are_made_once_and_return_an_error(orphan):
    with pytest.raises(OSError, match="libcufirst"):
        ctypes.CDLL(str(orphan))
    assert cuda_stand_ins.make(orphan.parent) == ["libcufirst.so.7", "libcusecond.so.7"]
    assert cuda_stand_ins.make(orphan.parent) == []
    assert ctypes.CDLL(str(orphan)).sum() == 2 * cuda_stand_ins.NO_DEVICE


def test_stand_ins_define_only_what_is_missing(orphan):
    cuda_stand_ins.make(orphan.parent)
    assert elf.defined(orphan.parent / "libcufirst.so.7") >= {"with_version"}
    assert elf.defined(orphan.parent / "libcusecond.so.7") == {"without"}
