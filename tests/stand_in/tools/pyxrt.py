"""A fake pyxrt: the members the adapter uses, as XRT src/python/pybind11/src/pyxrt.cpp binds them.

Kernels compute by our own emulator, from the program in the artefact. Scenario {"pyxrt": {…}}:
  import     "missing" | "other_python" | "hang"
  api        "old": no ext and no elf; waits take no limit
  device     text of what device(0) raises; "hang"
  contexts   how many hardware contexts there are before err=-22
  wait       "complete" | "hang" | a state's name returned | "raise:STATE" | "none"
  start      text start() raises;  from_run: from which run on (1 is the first)
  compute    "right" | "nothing" | "zeros" | "nan" | "half" | "stale" (right once, then half)
  pace_s     what every wait takes, instead of what the emulator took: kernels then compute when their results are fetched
  die        the signal that ends the process when a run starts
  bo, noise
"""

import enum
import json
import os
import signal
import struct
import time

_place = os.environ.get("HERDBOOK_STAND_IN")
if not _place:
    raise ImportError("this pyxrt is a stand-in for tests and loads only from its fixture")
with open(_place, encoding="utf-8") as _file:
    _scenario = json.load(_file)
_said = _scenario.get("pyxrt", {})
if _said.get("import") == "hang":
    time.sleep(3600)
if _said.get("import") == "other_python":
    # How a module built for another CPython fails: mlir-air docs/buildingRyzenWin.md; mlir-aie docs/buildHostLinNonUbuntu.md.
    raise ImportError("/opt/xilinx/xrt/python/pyxrt.so: undefined symbol: _PyThreadState_UncheckedGet")
if _said.get("noise"):
    print("XRT build version: 2.21.0 (printed to standard output by a library)")

if not {"start", "die", "device", "context", "bo"} & set(_said) or "from_run" in _said:
    if _said.get("wait", "complete") in ("complete", "none"):
        import npu_tools.emulator.run  # noqa: F401  (here, where the start has its time, and not within a dispatch)


def _typed(where, *pairs):
    """pybind11 refuses arguments of another type; so does this."""
    for value, kinds in pairs:
        if not isinstance(value, kinds) or (
            isinstance(value, bool) and int in (kinds if isinstance(kinds, tuple) else (kinds,))
        ):
            raise TypeError(f"{where}: incompatible function arguments ({type(value).__name__})")


_pending = []
_runs = 0
_contexts = 0
_known = {}


class ert_cmd_state(enum.IntEnum):
    ERT_CMD_STATE_NEW = 1
    ERT_CMD_STATE_QUEUED = 2
    ERT_CMD_STATE_COMPLETED = 4
    ERT_CMD_STATE_ERROR = 5
    ERT_CMD_STATE_ABORT = 6
    ERT_CMD_STATE_SUBMITTED = 7
    ERT_CMD_STATE_TIMEOUT = 8
    ERT_CMD_STATE_NORESPONSE = 9


class xclBOSyncDirection(enum.IntEnum):
    XCL_BO_SYNC_BO_TO_DEVICE = 0
    XCL_BO_SYNC_BO_FROM_DEVICE = 1


class xrt_info_device(enum.IntEnum):
    bdf = 0
    name = 5


def enumerate_devices():
    return 0 if _scenario.get("npu") is None else 1


class device:
    def __init__(self, index=0):
        if _said.get("device") == "hang":
            time.sleep(3600)
        if _said.get("device"):
            raise RuntimeError(_said["device"])
        if _scenario.get("npu") is None:
            raise RuntimeError("No such device with index '0'")

    def get_info(self, key):
        return {"bdf": _scenario["npu"]["bdf"], "name": _scenario["npu"]["name"]}[key.name]

    def register_xclbin(self, file):
        return file.get_uuid()


def _payload(path):
    with open(path, "rb") as file:
        content = file.read()
    if content[:4] == b"\x7fELF":
        (start,) = struct.unpack_from("<I", content, 32)
        return json.loads(content[52:start])
    if content[:7] != b"xclbin2":
        raise RuntimeError(f"{path} is not a valid xclbin")
    return json.loads(content[312:])


class xclbin:
    def __init__(self, path):
        _typed("xclbin", (path, str))
        self.content = _payload(path)

    def get_uuid(self):
        return self

    def get_kernels(self):
        return [_Name(self.content["kernel"])]


class _Name:
    def __init__(self, name):
        self.name = name

    def get_name(self):
        return self.name


class hw_context:
    def __init__(self, device, source, *rest):
        global _contexts
        _typed("hw_context", (device, globals()["device"]))
        if not hasattr(source, "content"):
            raise TypeError("hw_context: incompatible function arguments")
        if _contexts >= _said.get("contexts", 16):
            # llms/smolvla/docs/profile.md; driver limit in amd/xdna-driver drivers/accel/amdxdna/npu4_regs.c.
            raise RuntimeError("DRM_IOCTL_AMDXDNA_CREATE_HWCTX IOCTL failed (err=-22): Invalid argument")
        if _said.get("context"):
            raise RuntimeError(_said["context"])
        _contexts += 1
        self.content = source.content

    def __del__(self):
        global _contexts
        if hasattr(self, "content"):
            _contexts -= 1


class kernel:
    def __init__(self, context, name):
        _typed("kernel", (context, hw_context), (name, str))
        if name != context.content["kernel"]:
            raise RuntimeError(f"No such kernel '{name}'")
        self.content, self.name = context.content, name

    def group_id(self, index):
        return index


class bo:
    class flags(enum.IntEnum):
        cacheable = 1
        host_only = 2

    cacheable, host_only = flags.cacheable, flags.host_only

    def __init__(self, device, size, flags=None, group=None):
        _typed("bo", (device, (globals()["device"], hw_context)), (size, int))
        if type(self) is bo:
            _typed("bo", (flags, bo.flags), (group, int))
        if _said.get("bo"):
            raise RuntimeError(_said["bo"])
        self.memory, self.on_device, self.group, self.flags = bytearray(size), bytearray(size), group, flags

    def map(self):
        return memoryview(self.memory)

    def sync(self, direction, *window):
        _typed("sync", (direction, xclBOSyncDirection))
        while _pending:
            _pending.pop()()
        if direction == xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE:
            self.on_device[:] = self.memory
        else:
            self.memory[:] = self.on_device

    def size(self):
        return len(self.memory)


class run:
    def __init__(self, kernel):
        _typed("run", (kernel, globals()["kernel"]))
        self.kernel, self.arguments, self.last = kernel, {}, ert_cmd_state.ERT_CMD_STATE_NEW

    def set_arg(self, index, value):
        _typed("set_arg", (index, int), (value, (bo, int)))
        self.arguments[index] = value

    def start(self):
        global _runs
        _runs += 1
        if _said.get("die"):
            # xrt_kernel.cpp abort_coredump_or_noop says nothing before it aborts; the kernel's killer neither.
            os.kill(os.getpid(), getattr(signal, _said["die"]))
        late = _runs >= _said.get("from_run", 1)
        if _said.get("start") and late:
            raise RuntimeError(_said["start"])
        self.wanted = _said.get("wait", "complete") if late else "complete"
        if self.wanted in ("complete", "none"):
            how = _said.get("compute", "right") if late else "right"
            if "pace_s" in _said:
                _pending[:] = [lambda: self._compute(how)]
            else:
                self._compute(how)
        self.last = ert_cmd_state.ERT_CMD_STATE_COMPLETED

    def wait(self, *limit):
        if limit and _said.get("api") == "old":
            raise TypeError("wait(): incompatible function arguments")
        _typed("wait", *((one, int) for one in limit))
        return self._end(limit[0] if limit else 0)

    def wait2(self, *limit):
        if limit:
            # No chrono caster is included in pyxrt.cpp.
            raise TypeError("wait2(): incompatible function arguments")
        state = self._end(0)
        if _said.get("api") == "old":
            return state
        if state not in (None, ert_cmd_state.ERT_CMD_STATE_COMPLETED):
            raise RuntimeError(f"Command failed to complete successfully ({state.name})")
        return None

    def state(self):
        return self.last

    def _end(self, limit):
        if self.wanted == "hang":
            time.sleep(3600)  # as a wait that holds the interpreter: no signal handler of this process runs
        time.sleep(_said.get("pace_s", 0))
        if self.wanted == "none":
            return None
        if self.wanted == "complete":
            return ert_cmd_state.ERT_CMD_STATE_COMPLETED
        if self.wanted.startswith("raise:"):
            raise RuntimeError(f"Command failed to complete successfully ({self.wanted[6:]})")
        self.last = ert_cmd_state[self.wanted]
        return self.last

    def _compute(self, how):
        if how == "nothing":
            return
        first = 3 if 2 in self.arguments and not isinstance(self.arguments[2], bo) else 0
        buffers = [self.arguments[position] for position in sorted(self.arguments) if position >= first]
        wrong_device = not self.kernel.content["device"].startswith(
            "npu1" if _scenario["npu"]["architecture"] == "aie2" else "npu2"
        )
        if wrong_device:
            return  # a binary of the other generation loads and computes nothing: mlir-air python/air/backend/xrt.py
        if how == "stale":
            how = "right" if _runs == 1 else "half"
        _results(self.kernel.content["program"], buffers, how)


def _results(program, buffers, how):
    import numpy as np

    from npu_tools.air import parse_program
    from npu_tools.arrays import signature
    from npu_tools.emulator.run import choose_function, run_program

    parsed = parse_program(program, "air.mlir")
    arguments = signature(choose_function(parsed, None))
    given = {}
    for one, buffer in zip(arguments, buffers, strict=True):
        given[one.name] = np.frombuffer(bytes(buffer.on_device), one.dtype).reshape(one.shape).copy()
    key = hash((program, *(bytes(buffer.on_device) for buffer in buffers)))
    if key not in _known:  # timed runs repeat the same one
        _known[key] = run_program(parsed, given)
    result = _known[key]
    if not result.ok:
        raise RuntimeError(f"the emulator behind the stand-in fails: {result.findings[0].message}")
    for one, buffer in zip(arguments, buffers, strict=True):
        after = np.ascontiguousarray(result.outputs[one.name].astype(one.dtype))
        if after.tobytes() == given[one.name].tobytes():
            continue
        if how == "zeros":
            after = np.zeros_like(after)
        if how == "nan":
            after = np.full_like(after, np.nan)
            after.view(np.uint16 if after.itemsize == 2 else np.uint32)[...] = (
                0x7FC0 if after.itemsize == 2 else 0x7FC00000
            )
        if how == "half":
            before = given[one.name]
            after.reshape(-1)[after.size // 2 :] = before.reshape(-1)[after.size // 2 :]
        buffer.on_device[:] = after.tobytes()


if _said.get("api") != "old":

    class elf:
        def __init__(self, path):
            _typed("elf", (path, str))
            self.content = _payload(path)

    class ext:
        class bo(bo):
            def __init__(self, device, size, access=None):
                super().__init__(device, size)

        class kernel(kernel):
            pass
