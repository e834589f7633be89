"""Looks for known holes in what is installed: Python's packages of environments, and the tools of the page's JavaScript.

    python -m tests.audit PIP_AUDIT ENVIRONMENT ...

The exit code is 0 if everything was looked up and nothing is known, 1 if there is a known hole, and 2 if something could not be
looked up, with a sentence that says what and why.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: The two services that pip-audit can ask; the second is asked where the first does not answer.
SERVICES = ("pypi", "osv")
FOUND, NOT_AUDITED = 1, 2


class NotAudited(Exception):
    """Something could not be looked up; the message is a sentence."""


def main(arguments: Sequence[str]) -> int:
    """The command line."""
    if len(arguments) < 2:
        raise SystemExit("Give the path of pip-audit and at least one environment: python -m tests.audit PIP_AUDIT ENVIRONMENT")
    pip_audit, *environments = arguments
    code = 0
    for name, audit in [
        *((environment, lambda each=environment: packages(pip_audit, Path(each))) for environment in environments),
        ("package.json", npm),
    ]:
        try:
            holes = audit()
        except NotAudited as error:
            sys.stdout.write(f"{name} was not audited: {error}\n")
            code = max(code, NOT_AUDITED)
            continue
        sys.stdout.write("".join(f"{name}: {hole}\n" for hole in holes) or f"{name}: nothing is known.\n")
        code = max(code, FOUND if holes else 0)
    return code


def packages(pip_audit: str, environment: Path) -> list[str]:
    """The known holes of an environment's packages, a line each.

    Raises:
        NotAudited: the packages cannot be listed, or neither service answers.
    """
    python = next((path for path in (environment / "bin/python", environment / "Scripts/python.exe") if path.exists()), None)
    if python is None:
        raise NotAudited(f"there is no environment in {environment}; make test creates it.")
    frozen = subprocess.run(
        [str(python), "-m", "pip", "freeze", "--exclude-editable", "--disable-pip-version-check"],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    lines = [re.sub(r"\+\S*", "", line) for line in frozen.stdout.splitlines() if "==" in line]
    if frozen.returncode or not lines:
        raise NotAudited(f"pip lists no packages in {environment}.")
    reasons = []
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "requirements.txt"
        listed.write_text("\n".join(lines), encoding="utf-8")
        for service in SERVICES:
            command = [pip_audit, "--no-deps", "--disable-pip", "--progress-spinner", "off", "--format", "json"]
            done = subprocess.run([*command, "-s", service, "-r", str(listed)], check=False, capture_output=True, text=True)
            listing = _json(done.stdout).get("dependencies")
            skipped = [each for each in listing or [] if "skip_reason" in each]
            if listing and not skipped:
                return holes_of(listing)
            left_out = f"left out {len(skipped)} of {len(lines)} packages, {skipped[0]['name']} first" if skipped else ""
            reasons.append(f"{service} {left_out or f'said {last_line(done.stderr)!r}'}")
    raise NotAudited(f"the services of pip-audit could not be reached ({'; '.join(reasons)}).")


def holes_of(listing: Sequence[dict[str, Any]]) -> list[str]:
    """The known holes among the packages of a report of pip-audit."""
    return [
        f"{each['name']} {each['version']} has {hole['id']}, mended in {', '.join(hole['fix_versions']) or 'no release'}"
        for each in listing
        for hole in each["vulns"]
    ]


def npm() -> list[str]:
    """The known holes of the tools of the page's JavaScript.

    Raises:
        NotAudited: there is no npm, or its service does not answer.
    """
    if shutil.which("npm") is None:
        raise NotAudited("there is no npm on this machine.")
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy("package.json", folder)
        for command in (["npm", "install", "--package-lock-only", "--no-fund", "--no-audit"], ["npm", "audit", "--json"]):
            done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder)
    report = _json(done.stdout)
    if "vulnerabilities" not in report:
        said = report.get("message") or report.get("error", {}).get("summary") or last_line(done.stderr)
        raise NotAudited(f"the service of npm could not be reached (it said {said!r}).")
    return [f"{name} has a hole of severity {entry['severity']}" for name, entry in report["vulnerabilities"].items()]


def _json(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def last_line(text: str) -> str:
    """The last line of a program's errors."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][-300:] if lines else "nothing"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
