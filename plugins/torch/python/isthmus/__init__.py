"""isthmus: collectives for PyTorch over shared memory and the network.

Installing the package is enough: torch's entry points register the backend, and
``torch.distributed.init_process_group("isthmus")`` uses it. Importing this module does the same
where entry points are switched off. It works without torch, and imports nothing heavy.
"""

import sys

__all__ = ["__version__", "torch_version"]

_NAME = "isthmus"
_C10D = "torch.distributed.distributed_c10d"


def _create(options, backend_options):
    """What torch calls for every process group: the shim is loaded on the first use."""
    from isthmus import _torch

    return _torch.create(options, backend_options)


def _register():
    """Makes the backend known to torch.distributed; doing it again changes nothing."""
    from torch.distributed.distributed_c10d import Backend

    plugin = Backend._plugins.get(_NAME.upper())
    if plugin is not None and plugin.creator_fn is _create:
        return
    if plugin is not None or _NAME in Backend.backend_list:
        raise RuntimeError(
            'torch.distributed already has a backend named "isthmus" that is not this package: '
            "remove the other one, or uninstall isthmus."
        )
    Backend.register_backend(_NAME, _create, extended_api=True, devices=["cpu", "cuda"])


class _RegisterLater:
    """Stands in sys.meta_path until torch.distributed is imported, and registers right after."""

    def find_spec(self, name, path=None, target=None):
        if name != _C10D:
            return None
        import importlib.util

        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_register(module):
            run(module)
            _register()

        spec.loader.exec_module = run_and_register
        return spec


def _say_without_torch():
    """One line on stderr where there is no torch; our own commands do not need it."""
    import importlib.util
    import os.path

    program = os.path.basename(sys.argv[0]) if sys.argv else ""
    if program == _NAME or program.endswith("_perf") or importlib.util.find_spec("torch"):
        return
    print(
        "isthmus: PyTorch is not installed, so its backend is not there. Run: "
        "pip install torch==2.13.0 && pip install --force-reinstall --no-deps . "
        "(in the folder of isthmus' source)",
        file=sys.stderr,
    )


def __getattr__(name):
    if name == "torch_version":
        from isthmus import _torch

        return _torch.load().torch_version
    if name == "__version__":
        from importlib import metadata

        return metadata.version(_NAME)
    raise AttributeError(f"module 'isthmus' has no attribute {name!r}")


# While torch itself is being imported it is the entry point's turn (isthmus._autoload).
if _C10D in sys.modules:
    if hasattr(sys.modules[_C10D], "new_group"):
        _register()
elif "torch" not in sys.modules:
    sys.meta_path.insert(0, _RegisterLater())

if "torch" not in sys.modules or sys.modules["torch"] is None:
    _say_without_torch()
