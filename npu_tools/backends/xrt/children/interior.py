"""What this Python has of the toolchain, found without importing any of it; one line of JSON."""

from __future__ import annotations

import glob
import importlib.metadata
import importlib.util
import json
import os
import platform
import sys

PACKAGES = ("mlir_air", "mlir_aie", "llvm-aie", "numpy", "ml_dtypes", "filelock")
MODULES = ("air", "aie", "pyxrt", "filelock", "numpy")
DATA = {"llvm-aie": "llvm-aie", "mlir_aie": "mlir_aie", "mlir_air": "mlir_air"}
"""Package -> folder its wheel unpacks to."""


def main() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != here]
    packages: dict[str, str] = {}
    folders: dict[str, str] = {}
    modules: dict[str, str] = {}
    for name in PACKAGES:
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        packages[name] = found.version
        if name in DATA and os.path.isdir(str(found.locate_file(DATA[name]))):
            folders[name] = os.path.abspath(str(found.locate_file(DATA[name])))
    for name in MODULES:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            spec = None
        if spec is not None and spec.origin:
            modules[name] = spec.origin
    extensions = sorted(
        path
        for place in sys.path
        for path in glob.glob(os.path.join(glob.escape(place or "."), "pyxrt*"))
        if path.endswith((".so", ".pyd", ".py"))
    )
    print(
        json.dumps(
            {
                "python": platform.python_version(),
                "packages": packages,
                "folders": folders,
                "modules": modules,
                "pyxrt_files": extensions,
            }
        )
    )


if __name__ == "__main__":
    main()
