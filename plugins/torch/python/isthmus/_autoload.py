"""Entry point of ``torch.backends``: runs at the end of every ``import torch``.

It must be cheap and must never raise, since a raise would make ``import torch`` itself fail.
"""

import os
import sys

# Why registering failed, for whoever wonders that the backend is unknown.
cause = None


def load():
    """Registers the backend, unless TORCH_DEVICE_BACKEND_AUTOLOAD=0."""
    global cause
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "0":
        return
    try:
        # A torch that imports torch.distributed later asks the entry point of
        # torch.distributed.backends when the name is used.
        if "torch.distributed.distributed_c10d" in sys.modules:
            import isthmus

            isthmus._register()
    except Exception as error:
        cause = error
        print(f"isthmus: the backend is not registered: {error}", file=sys.stderr)
