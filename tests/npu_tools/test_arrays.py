"""Files of arrays: what is damaged or is none is said, whatever is wrong with it."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from npu_tools.arrays import read_arrays, write_arrays
from npu_tools.errors import UnusableInput


def test_arrays_come_back_as_they_were(tmp_path: Path) -> None:
    arrays = {"arg0": np.arange(6, dtype=np.int32).reshape(2, 3), "arg1": np.ones(4, np.float32)}
    for ending in (".npz", ".safetensors"):
        write_arrays(tmp_path / f"a{ending}", arrays)
        back = read_arrays(tmp_path / f"a{ending}")
        assert all((back[name] == arrays[name]).all() for name in arrays)


def damaged(path: Path) -> None:
    np.savez_compressed(path, arg0=np.arange(4096), arg1=np.arange(64))
    content = bytearray(path.read_bytes())
    for at in range(60, len(content) - 150, 7):
        content[at] ^= 0x55
    path.write_bytes(content)


def boastful(path: Path) -> None:
    """A header that claims a tera of elements."""
    array = io.BytesIO()
    np.lib.format.write_array_header_1_0(array, {"descr": "<i4", "fortran_order": False, "shape": (10**12,)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("arg0.npy", array.getvalue() + b"\0" * 1000)


def text(path: Path) -> None:
    path.write_text("no arrays here", encoding="utf-8")


@pytest.mark.parametrize("make", [damaged, boastful, text])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, make: object) -> None:
    make(tmp_path / "in.npz")  # type: ignore[operator]
    with pytest.raises(UnusableInput, match=r"in\.npz"):
        read_arrays(tmp_path / "in.npz")


def test_inputs_with_nan_or_infinity_are_remarked_with_their_place() -> None:
    from npu_tools.arrays import non_finite

    given = np.zeros((2, 3), np.float32)
    given[1, 2], given[0, 1] = np.nan, np.inf
    (said,) = non_finite({"arg0": given, "arg1": np.ones(2, np.int32), "arg2": np.ones(2, ml_dtypes.bfloat16)})
    assert (said.severity, said.code) == ("warning", "non-finite-input")
    assert "arg0 holds 1 NaN and 1 infinities of 6 values, the first at [0, 1]" in said.message
