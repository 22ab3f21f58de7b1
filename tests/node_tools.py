"""Fetches pinned command-line tools from npm for the checks that need them; nothing lands in the repository.

They go to the user's cache folder (`HERDBOOK_TEST_TOOLS` names another), one folder per package and
version, put in place only when complete. Registry, proxy and certificates are whatever npm is configured for.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import platformdirs

NODE = "22.23.3"
"""The node both tools run on; taken from npm where the machine's own is older than `NODE_NEEDED`."""
NODE_NEEDED = (22, 19)


def node() -> str:
    """A node that is new enough."""
    own = shutil.which("node")
    if own is not None:
        version = subprocess.run([own, "--version"], capture_output=True, text=True, check=True).stdout
        major, minor, *_ = version.strip().lstrip("v").split(".")
        if (int(major), int(minor)) >= NODE_NEEDED:
            return own
    folder = package("node", NODE)
    name = "node.exe" if sys.platform == "win32" else "node"
    found = folder / "bin" / name
    if not found.exists():
        sys.exit(f"npm installed node@{NODE} without its binary: allow its install script (npm config ignore-scripts)")
    return str(found)


def package(name: str, version: str) -> Path:
    """The folder of an npm package, installed with its dependencies at the first call."""
    cache = Path(
        os.environ.get("HERDBOOK_TEST_TOOLS") or platformdirs.user_cache_dir("herdbook-tests", appauthor=False)
    )
    goal = cache / f"{name.strip('@').replace('/', '-')}-{version}"
    if not goal.exists():
        npm = shutil.which("npm")
        if npm is None:
            sys.exit("npm is not on PATH; install node with npm (any version from 18 on)")
        print(f"fetching {name}@{version} with npm into {cache}", flush=True)
        cache.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix="part-", dir=cache))
        (scratch / "package.json").write_text('{"private": true}\n', encoding="utf-8")
        command = [npm, "install", "--no-audit", "--no-fund", "--loglevel=error", "--save-exact", f"{name}@{version}"]
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            shutil.rmtree(scratch)
            sys.exit(f"npm could not install {name}@{version}:\n{done.stderr.strip()[-2000:]}")
        try:
            scratch.replace(goal)
        except OSError:  # another run was quicker
            shutil.rmtree(scratch)
    return goal / "node_modules" / name
