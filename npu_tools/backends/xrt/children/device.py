"""What pyxrt says of the device: imported here, in a process that may hang or die; one line of JSON, last."""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any


def main() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != here]
    answer: dict[str, Any] = {
        "imported": False,
        "error": "",
        "file": "",
        "ext": False,
        "elf": False,
        "devices": None,
        "info": {},
    }
    try:
        pyxrt: Any = importlib.import_module("pyxrt")
    except BaseException as error:
        answer["error"] = f"{type(error).__name__}: {error}"
        print(json.dumps(answer))
        return
    answer.update(
        imported=True,
        file=getattr(pyxrt, "__file__", "") or "",
        ext=hasattr(pyxrt, "ext") and hasattr(getattr(pyxrt, "ext", None), "kernel"),
        elf=hasattr(pyxrt, "elf"),
    )
    try:
        if hasattr(pyxrt, "enumerate_devices"):
            answer["devices"] = int(pyxrt.enumerate_devices())
        device = pyxrt.device(0)
        for key in ("name", "bdf"):
            try:
                answer["info"][key] = str(device.get_info(getattr(pyxrt.xrt_info_device, key)))
            except Exception as error:
                answer["info"][key] = ""
                answer["error"] = str(error)
    except BaseException as error:
        answer["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
