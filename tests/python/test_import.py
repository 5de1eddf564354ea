"""What `import torch` pays for isthmus, and what users read when something does not fit."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
from pathlib import Path

import isthmus
from harness import environment, run_script

# Bound on the median time that the entry point adds to `import torch`, in milliseconds.
_ENTRY_LIMIT_MS = 5.0
# Forked processes that the median is over.
_ENTRY_SAMPLES = 20


def _entry_ms(samples: int) -> list[float]:
    """Milliseconds of loading and calling the entry point, as `import torch` does at its end.

    torch is imported without its entry points; each sample is a fork of that process, which has
    loaded nothing of isthmus and times just these two calls, in processor time: other programs on
    the machine do not count. -X importtime would show less: it
    lists modules only, and not what the entry does with them.
    """
    text = """
import os, time, torch
from importlib.metadata import entry_points
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "1"
(entry,) = entry_points(group="torch.backends", name="isthmus")
for _ in range(SAMPLES):
    child = os.fork()
    if child == 0:
        begin = time.process_time()
        entry.load()()
        print("entry ms", (time.process_time() - begin) * 1e3, flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
    done = subprocess.run(
        [sys.executable, "-c", text.replace("SAMPLES", str(samples))],
        env=environment() | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    times = [float(time) for time in re.findall(r"entry ms (\S+)", done.stdout)]
    assert len(times) == samples, done.stdout
    return times


def test_entry_point_is_cheap():
    times = _entry_ms(_ENTRY_SAMPLES)
    print("entry, milliseconds:", " ".join(f"{time:.2f}" for time in sorted(times)))
    assert statistics.median(times) <= _ENTRY_LIMIT_MS, times


def test_import_torch_loads_no_shim():
    listing = "print([m for m in sys.modules if m.startswith('isthmus')])"
    done = run_script(f"import sys, torch; {listing}")
    assert "_torch" not in done.stdout, done.stdout


def test_registering_again_changes_nothing():
    text = """
import torch.distributed as dist, isthmus
before = dict(dist.Backend._plugins)
isthmus._register(); isthmus._register()
assert dist.Backend._plugins == before and "ISTHMUS" in before
"""
    done = run_script(text)
    assert done.returncode == 0, done.stderr


def test_a_taken_name_is_refused():
    text = """
import torch.distributed as dist
dist.Backend.register_backend("isthmus", lambda *a: None, devices=["cpu"])
import isthmus
"""
    done = run_script(text, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.returncode != 0 and "already has a backend named" in done.stderr


def test_without_autoload_an_import_registers():
    for order in ("import torch, isthmus", "import isthmus, torch"):
        text = f"{order}\nprint('isthmus' in torch.distributed.Backend.backend_list)"
        done = run_script(text, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
        assert done.stdout.strip() == "True", (order, done.stderr)
    done = run_script(
        "import torch; print('isthmus' in torch.distributed.Backend.backend_list)",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert done.stdout.strip() == "False"


def test_autoload_never_raises():
    text = """
import sys
import isthmus._autoload as autoload
class Broken:
    def __getattr__(self, name): raise RuntimeError("broken")
sys.modules["torch.distributed.distributed_c10d"] = Broken()
autoload.load()
assert autoload.cause is not None
"""
    done = run_script(text, TORCH_DEVICE_BACKEND_AUTOLOAD="1")
    assert done.returncode == 0 and "the backend is not registered" in done.stderr, done.stderr


def test_another_torch_gets_one_sentence_and_the_command():
    text = """
import torch
torch.__version__ = "2.99.1+cpu"
import torch.distributed as dist
try:
    dist.init_process_group("isthmus", store=dist.HashStore(), rank=0, world_size=1)
except ImportError as error:
    print(error)
"""
    done = run_script(text)
    assert "cannot be used with torch 2.99.1+cpu" in done.stdout, done.stdout + done.stderr
    assert "pip install" in done.stdout and done.stdout.count("\n") == 1


def test_the_sentence_names_every_torch_that_the_installation_is_for(tmp_path):
    for name in ("_C_2_13.so", "_C_2_8.so", "_C_2_10.so"):
        (tmp_path / name).touch()
    text = f"""
import isthmus._torch as chosen, torch
chosen.__path__ = [{str(tmp_path)!r}]
torch.__version__ = "2.99.1+cpu"
try:
    chosen.load()
except ImportError as error:
    print(error)
"""
    done = run_script(text)
    assert "built for torch 2.8, 2.10, 2.13 and cannot" in done.stdout, done.stdout + done.stderr


def test_the_shim_itself_refuses_another_torch():
    text = """
import torch, isthmus._torch as chosen, importlib
name = "isthmus._torch._C_" + "_".join(torch.__version__.split(".")[:2])
torch.__version__ = "2.99.1+cpu"
try:
    importlib.import_module(name)
except ImportError as error:
    print(error)
"""
    done = run_script(text)
    assert "built for torch" in done.stdout and "2.99.1+cpu" in done.stdout, done.stderr


def test_without_torch():
    text = """
import sys
sys.modules["torch"] = None
import isthmus
print(isthmus.__version__)
try:
    isthmus.torch_version
except ImportError as error:
    print(error)
"""
    done = run_script(text)
    version, message = done.stdout.splitlines()
    assert version == isthmus.__version__
    assert "pip install torch" in message, message
    assert done.stderr.count("pip install torch") == 1, done.stderr


def test_versions():
    import torch

    assert re.fullmatch(r"\d+\.\d+\.\d+", isthmus.__version__)
    assert isthmus.torch_version.split(".")[:2] == torch.__version__.split(".")[:2]


def test_package_is_typed():
    assert (Path(isthmus.__file__).parent / "py.typed").exists()
