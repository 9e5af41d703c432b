"""An H200 that is not there: Triton compiles for it, and nothing runs.

Triton asks a driver what it compiles for, and fla asks PyTorch and Triton what the device is and how many candidates it
can take. Here both are told of an H200. Kernels can be compiled then (compare_compile.py), on tensors of the CPU that
hold no numbers, and go into the cache under the keys that they have on an H200 with the same Triton.
"""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, Callable

SHARED, PROCESSORS = 232_448, 132  # bytes of shared memory that a block may have; multiprocessors


def properties(_: Any = 0) -> dict[str, int]:
    """What Triton's driver says of an H200."""
    return {"max_shared_mem": SHARED, "max_num_regs": 65536, "multiprocessor_count": PROCESSORS, "warpSize": 32,
            "sm_clock_rate": 1_980_000, "mem_clock_rate": 3_201_000, "mem_bus_width": 6144}


def c_code(make: Callable[[], Any]) -> None:
    """Compiles C code of Triton's, where there is a libcuda.so.1 to link (TRITON_LIBCUDA_PATH, a folder). It goes into
    the cache before it is loaded, which fails without a driver."""
    from triton import knobs

    if knobs.nvidia.libcuda_path:
        logging.getLogger("triton.runtime.build").setLevel(logging.ERROR)  # "could not be loaded"
        try:
            make()
        except ImportError:
            pass


def pretend() -> None:
    """From here on this process has an H200, as far as it only compiles for it. Before fla is imported."""
    import torch
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.driver import CudaLauncher, CudaUtils, ty_to_cpp
    from triton.runtime.driver import driver

    driver.set_active(SimpleNamespace(
        get_current_device=lambda: 0, get_current_stream=lambda device: 0, map_python_to_cpp_type=ty_to_cpp,
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        launcher_cls=lambda src, metadata: c_code(lambda: CudaLauncher(src, metadata)),
        utils=SimpleNamespace(get_device_properties=properties),
        get_device_capability=lambda device=0: (9, 0)))
    c_code(CudaUtils)
    cuda: Any = torch.cuda
    cuda.device_count, cuda.current_device = (lambda: 1), (lambda: 0)
    cuda.get_device_name = lambda device=None: "NVIDIA H200"
    cuda.get_device_capability = lambda device=None: (9, 0)
    cuda.get_device_properties = lambda device=None: SimpleNamespace(
        name="NVIDIA H200", major=9, minor=0, multi_processor_count=PROCESSORS, shared_memory_per_block=49152,
        shared_memory_per_block_optin=SHARED, total_memory=150_754_820_096, warp_size=32)
