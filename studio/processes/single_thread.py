"""Settings that keep numpy and pyarrow from starting threads when they are loaded.

A fork copies one thread only, and Landlock binds only the thread that asks for it.
"""

from types import MappingProxyType

ENVIRONMENT = MappingProxyType(
    {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
)
"""To be set before they are imported."""
