"""The compiled engine, where there is a compiler for it; everything else about the package is in pyproject.toml.

Without cargo and rustc the package is built without it, as a wheel for every platform: the pure engine does the same.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig

from setuptools import setup
from setuptools_rust import Binding, RustExtension

ABI = "cp311"  # the first stable ABI with the buffer protocol; pyo3's feature in rust/binding/Cargo.toml says the same

missing = [tool for tool in ("cargo", "rustc") if shutil.which(tool) is None]
if missing:
    sys.stderr.write(f"odradek: without its compiled engine, because {' and '.join(missing)} cannot be found\n")
    setup()
else:
    extension = RustExtension(
        "odradek.engine._compiled",
        path="rust/binding/Cargo.toml",
        args=["--locked"],
        binding=Binding.PyO3,
        debug=False,  # in editable installs, too
        optional=True,  # with a compiler that is too old, pip names the reason and installs the pure engine
    )
    # A free-threaded interpreter has no stable ABI before 3.15: there, the extension is for that version only.
    free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    setup(rust_extensions=[extension], options={} if free_threaded else {"bdist_wheel": {"py_limited_api": ABI}})
