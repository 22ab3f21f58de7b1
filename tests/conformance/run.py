"""Run the official MCP conformance suite against a fixture build of the server.

    tests/conformance/run                # every protocol version; a minute, plus npm's downloads the first time
    tests/conformance/run 2026-07-28     # one of them

Scenarios come from `@modelcontextprotocol/conformance` (pinned below: the newest release, since the
stable one stops at 2025-11-25). Extensions (tasks, skills) are left out: the server declares none.
What fails for a reason is in expected-failures.yml, in words. Exits with 1 on an unexplained failure
and on an explained one that passes by now.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import node_tools  # noqa: E402

SUITE = ("@modelcontextprotocol/conformance", "0.2.0-alpha.12")
SCENARIOS = {"2025-06-18": 27, "2025-11-25": 33, "2026-07-28": 40}
"""Scenarios of each protocol version in that release: fewer run means the suite was not the one pinned."""
EXPECTED = HERE / "expected-failures.yml"


def main(versions: list[str]) -> int:
    """The exit code."""
    unknown = [version for version in versions if version not in SCENARIOS]
    if unknown:
        sys.exit(f"{unknown[0]} is not one of {', '.join(SCENARIOS)}")
    silent = unexplained_entries(EXPECTED.read_text(encoding="utf-8"))
    if silent:
        print(f"FAIL {EXPECTED.name}: no reason given above {', '.join(silent)}")
        return 1
    node, suite = node_tools.node(), node_tools.package(*SUITE) / "dist" / "index.js"
    with (
        tempfile.TemporaryDirectory(prefix="herdbook-conformance-") as results,
        open(Path(results) / "err", "w") as err,
    ):
        fixture = subprocess.Popen(
            [sys.executable, "-P", str(HERE / "fixture_server.py")], stdout=subprocess.PIPE, stderr=err, text=True
        )
        try:
            assert fixture.stdout is not None
            url = fixture.stdout.readline().strip()  # printed once the port is bound: the suite can connect
            if not url:
                sys.exit("the fixture server did not start:\n" + (Path(results) / "err").read_text(encoding="utf-8"))
            passed = [run(node, suite, url, version, Path(results)) for version in versions or SCENARIOS]
        finally:
            fixture.terminate()
            fixture.wait(10)
    return 0 if all(passed) else 1


def run(node: str, suite: Path, url: str, version: str, results: Path) -> bool:
    """Whether everything at this protocol version went as it should; prints what did.

    What fails is shown and run once more: a connection the busy machine cut is not the server's
    doing, and what is fails twice.
    """
    return attempt(node, suite, url, version, results / version) or attempt(
        node, suite, url, version, results / "again"
    )


def attempt(node: str, suite: Path, url: str, version: str, results: Path) -> bool:
    """One run of the suite at a protocol version."""
    command = [node, str(suite), "server", "--url", url, "--suite", "all", "--spec-version", version]
    command += ["--expected-failures", str(EXPECTED), "--output-dir", str(results)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False, timeout=150)
    output = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
    _, _, summary = output.partition("=== SUMMARY ===")
    lines = re.findall(r"^\S ([\w-]+): (\d+) passed, (\d+) failed", summary, re.M)
    failed = [name for name, _, count in lines if int(count)]
    print(f"{version}: {len(lines)} scenarios, {sum(int(good) for _, good, _ in lines)} checks passed, "
          f"{sum(int(bad) for _, _, bad in lines)} failed; excepted: {', '.join(failed) or 'none'}")  # fmt: skip
    fine = done.returncode == 0 and len(lines) == SCENARIOS[version]
    if not fine:
        print(summary.strip() or output[-3000:] + done.stderr[-3000:])
        for path in results.rglob("checks.json"):
            for check in json.loads(path.read_text(encoding="utf-8")):
                if check.get("status") == "FAILURE":
                    print(f"  {check.get('name')}: {check.get('errorMessage')} {str(check.get('details'))[:400]}")
    print(f"{'PASS' if fine else 'FAIL'} conformance {version}", flush=True)
    return fine


def unexplained_entries(text: str) -> list[str]:
    """Entries of the list of expected failures that have no comment right above them."""
    lines = [line.strip() for line in text.splitlines()]
    pairs = pairwise(["", *lines])
    return [line[2:] for above, line in pairs if line.startswith("- ") and not above.startswith("#")]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
