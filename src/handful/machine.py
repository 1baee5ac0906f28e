"""Device selection, memory settings, and which of several processes this is."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
from typing import TYPE_CHECKING

from .errors import HandfulError

if TYPE_CHECKING:
    import torch

RESEARCH_INSTALL = "pip install 'handful[research]'"
RESEARCH_PACKAGES = ("torch", "lightning_fabric", "lightning_utilities")  # what that brings, as modules
# Parameters of glibc's mallopt, from malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4


def keep_memory() -> bool:
    """Let glibc keep freed memory for the next training step instead of handing it back to the system.

    Called by the command line at start-up, never on import.

    Activations are tens of megabytes, which glibc returns at once and fetches again, page by page, in the next step;
    keeping them makes a step on the processor about 1.5 times as fast. Costs: the process does not shrink. Only on
    Linux with glibc; ``HANDFUL_KEEP_MEMORY=0`` turns it off. Returns whether it was done.
    """
    if (
        os.environ.get("HANDFUL_KEEP_MEMORY") == "0"
        or platform.system() != "Linux"
        or platform.libc_ver()[0] != "glibc"
    ):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = {_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: -1, _M_TOP_PAD: 256 << 20}
    return all(mallopt(name, value) for name, value in settings.items())


def has_torch() -> bool:
    """Whether PyTorch is installed; does not import it, which takes a second."""
    return importlib.util.find_spec("torch") is not None


def need_torch(what: str) -> None:
    """Say what to install if PyTorch is not there.

    Args:
        what: needs it, as the subject of the sentence.
    """
    if not has_torch():
        raise HandfulError(f"{what} needs PyTorch, which is not installed: {RESEARCH_INSTALL}")


def compute_device(name: str = "auto") -> torch.device:
    """The device of that name; ``auto`` takes a graphics card if there is one."""
    import torch  # takes a second, and most who ask this module something do not need it

    if name != "auto":
        return torch.device(name)
    return torch.device("cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu")


def may_have_graphics() -> bool:
    """Whether a graphics card may be there that PyTorch can use; False only if there is none, without asking PyTorch.

    Its driver leaves traces, and Apple's own processors have one built in.
    """
    if platform.system() == "Darwin":
        return platform.machine() == "arm64"
    traces = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg", os.path.expandvars(r"%SystemRoot%\System32\nvcuda.dll"))
    return any(map(os.path.exists, traces))


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def several_processes() -> bool:
    """Whether this process is one of several that train one model."""
    return os.environ.get("WORLD_SIZE", "1") != "1"


def is_main_process() -> bool:
    """Whether this process speaks and writes for all: the only one, or the first of several."""
    return os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"
