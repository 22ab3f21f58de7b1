"""The fake command-line tools, one file: aircc, aiecc, aie-opt, clang++, xrt-smi, llvm-link, journalctl.

Standard library only. What each does by default and refuses by itself is cited where it does it; everything else comes
from the scenario: {"aircc": {"stderr": …, "exit": 1}} and so on.
"""

import itertools
import json
import os
import re
import signal
import struct
import sys
import time


def main():
    place = os.environ.get("HERDBOOK_STAND_IN")
    if not place:
        sys.exit("this is a stand-in for tests and runs only from its fixture")
    with open(place, encoding="utf-8") as file:
        scenario = json.load(file)
    tool, arguments = sys.argv[0], sys.argv[1:]
    with open(scenario["log"], "a", encoding="utf-8") as file:
        file.write(json.dumps({"tool": tool, "arguments": arguments, "cwd": os.getcwd()}) + "\n")
    acts = {"aircc": aircc, "clang++": clang, "xrt-smi": smi, "llvm-link": link, "journalctl": journal}
    key = {"clang++": "clang", "xrt-smi": "smi", "llvm-link": "link", "journalctl": "journal"}.get(tool, tool)
    sys.exit(acts.get(tool, lambda *_: 0)(arguments, scenario.get(key, {}), scenario))


def common(said):
    """Printing, sleeping and dying as the scenario says."""
    sys.stdout.write(said.get("stdout", ""))
    sys.stderr.write(said.get("stderr", ""))
    sys.stdout.flush()
    sys.stderr.flush()
    if said.get("hang"):
        if said.get("deaf"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(3600)
    if said.get("signal"):
        os.kill(os.getpid(), said["signal"])
    return said.get("exit", 0)


def aircc(arguments, said, scenario):
    """Xilinx/mlir-air tools/aircc/aircc.cpp: reads the program, leaves air.xclbin or air.elf in the working folder."""
    code = common(said)
    if code:
        return code
    values = dict(itertools.pairwise(arguments))
    form = values["--output-format"]
    with open("air.mlir", encoding="utf-8") as file:
        program = file.read()
    objects = {}
    # Objects must be in the working folder and in air_project (llms/shared/infra/cache.py prepare_air_project).
    for name in sorted(set(re.findall(r'link_with = "([^"]+)"', program))):
        for folder in (".", "air_project"):
            if not os.path.exists(os.path.join(folder, name)):
                sys.stderr.write(f"ld.lld: error: cannot open {name}: No such file or directory\n")
                return 1
        with open(name, encoding="utf-8") as file:
            objects[name] = json.load(file)
    kernel = values.get("--xclbin-kernel-name", "MLIR_AIE")
    payload = json.dumps(
        {
            "program": program,
            "device": values["--device"],
            "objects": objects,
            "kernel": f"main:{values['--xclbin-instance-name']}" if form == "elf" else kernel,
            "peano": values.get("--peano", ""),
        }
    ).encode()
    binary = values["--elf-name"] if form == "elf" else values["-o"]
    content = elf(payload) if form == "elf" else xclbin(payload)
    if said.get("truncate"):
        content = content[: len(content) // 2]
    if not said.get("no_output"):
        with open(binary, "wb") as file:
            file.write(b"" if said.get("empty") else content)
    if form != "elf":
        with open(values["-i"], "wb") as file:
            file.write(struct.pack("<4I", 1, 2, 3, 4)[: said.get("insts_bytes", 16)])
    return 0


def xclbin(payload):
    """struct axlf of XRT's xclbin.h: magic, 296 bytes, then the file's length."""
    return b"xclbin2\0".ljust(304, b"\xff") + struct.pack("<Q", 312 + len(payload)) + payload


def elf(payload):
    """A 32-bit little-endian ELF header whose section table ends where the file does; the payload before it."""
    start = 52 + len(payload)
    header = b"\x7fELF\x01\x01\x01".ljust(32, b"\0") + struct.pack("<I", start) + b"\0" * 10 + struct.pack("<HH", 40, 1)
    return header.ljust(52, b"\0") + payload + b"\0" * 40


def clang(arguments, said, scenario):
    """Peano: an object is here the record of what it was built with."""
    if arguments == ["--version"]:
        print(said.get("version", "clang version 21.0.0"))
        return 0
    code = common(said)
    if code:
        return code
    values = dict(itertools.pairwise(arguments))
    with open(values["-c"], encoding="utf-8") as file:
        source = file.read()
    defines = sorted(one[2:] for one in arguments if one.startswith("-D"))
    target = next(one for one in arguments if one.startswith("--target="))
    with open(values["-o"], "w", encoding="utf-8") as file:
        json.dump({"source": source, "defines": defines, "target": target}, file)
    return 0


def smi(arguments, said, scenario):
    """XRT src/runtime_src/core/tools: ReportHost.cpp, ReportRyzenPlatform.cpp, ReportAiePartitions.cpp, XBHelpMenus.cpp."""
    code = common(said)
    if code:
        return code
    values = dict(itertools.pairwise(arguments))
    devices = said.get("devices", [scenario["npu"]] if scenario.get("npu") else [])
    if "-f" not in arguments:
        print(OLD if said.get("text") == "old" else text_report(devices))
        return 0
    if said.get("no_json"):
        sys.stderr.write("ERROR: Unknown JSON ABI version\n")
        return 1
    if "-o" not in arguments:
        sys.stderr.write("ERROR: Please specify an output file to redirect the json to\n")
        return 1
    if os.path.exists(values["-o"]) and "--force" not in arguments:
        sys.stderr.write(f"ERROR: The output file '{values['-o']}' already exists.\n")
        return 1
    report = {"schema_version": {"schema": "JSON", "creation_date": "now"}}
    if "-r" not in arguments:
        report["system"] = {"host": host(devices)}
    elif values["-r"] == "platform":
        mode = said.get("power_mode", "Turbo")
        report["devices"] = [
            {
                "platforms": [
                    {
                        "static_region": {"name": devices[0]["name"], "total_columns": "8"},
                        "status": {"power_mode": mode},
                    }
                ]
            }
        ]
    else:
        held = [
            {"pid": str(pid), "process_name": name, "context_id": "1", "status": "Active", "errors": "0"}
            for pid, name in said.get("contexts", [])
        ]
        partitions = [{"start_col": "0", "num_cols": "8", "hw_contexts": held}] if held else []
        report["devices"] = [{"aie_partitions": {"partitions": partitions}}]
    with open(values["-o"], "w", encoding="utf-8") as file:
        json.dump(report, file)
    return 0


def host(devices):
    """boost's property tree writes every value as a string."""
    return {
        "os": {"sysname": "Linux", "release": "6.14.0-28-generic"},
        "xrt": {
            "version": "2.21.0",
            "branch": "master",
            "hash": "0" * 40,
            "drivers": [{"name": "amdxdna", "version": "2.21.0_20260801", "hash": "1" * 40}],
        },
        "devices": [
            {
                "bdf": one["bdf"],
                "device_class": "ryzen",
                "name": one["name"],
                "firmware_version": one["firmware"],
                "aie_architecture_version": one["architecture"],
                "aie_topology": one["topology"],
                "is_ready": "true",
            }
            for one in devices
        ],
    }


def text_report(devices):
    """The three blocks of today."""
    lines = [
        "System Configuration",
        "  OS Name              : Linux",
        "",
        "XRT",
        "  Version              : 2.21.0",
        "  amdxdna Version      : 2.21.0_20260801, 1111",
        "  NPU Firmware Version : 1.1.2.65",
        "",
        "Device(s) Present",
    ]
    if not devices:
        return "\n".join([*lines, "  0 devices found"])
    rows = [f"|[{one['bdf']}]  |{one['name']}  |{one['architecture']}  |{one['topology']}  |" for one in devices]
    return "\n".join([*lines, "|BDF  |Name  |Architecture  |Topology  |", "|----|----|----|----|", *rows])


OLD = """System Configuration
  OS Name              : Linux
XRT
  Version              : 2.18.0
  amdxdna              : 2.18.0_20240606
Device(s) Present
  [0000:66:00.1] : RyzenAI-npu4
"""


def link(arguments, said, scenario):
    print(f"LLVM (http://llvm.org/):\n  LLVM version {said.get('version', '21.1.0')}")
    return 0


def journal(arguments, said, scenario):
    print("\n".join(said.get("lines", [])))
    return 0


main()
