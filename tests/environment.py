"""How JAX runs in tests: on the CPU, with compiled programs kept from one run to the next."""

import os
from pathlib import Path

CACHE = Path(__file__).parent.parent / ".cache" / "jax"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# Most tests run a program once or twice: compiling it fast matters more than running it fast.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
)
