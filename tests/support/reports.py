# SPDX-License-Identifier: Apache-2.0
"""What a suite's output says, for tests/run: how many cases there were, and why some failed. Other processes write to the same output, so
that half a line may stand before one of a suite's, and lines between."""

import re

REPORT_LINES = 16
UNITTEST_REPORT = re.compile(r"^={70}\n((?:FAIL|ERROR|UNEXPECTED SUCCESS): .*)\n(?:.*\n)?-{70}\n((?:.*\n)*?)"
                             r"(?=\n={70}$|\n-{70}$|\Z)", re.M)
CHECK_REPORT = re.compile(r"^\S+:\d+:[FE]:[^:\n]*:[^:\n]*:-?\d+: .*(?:\n(?!\S+:\d+:[FE]:|\d+%: Checks:).*)*", re.M)
VALGRIND_FAULT = re.compile(r"^==\d+== ((?:Invalid|Mismatched|Conditional jump|Use of uninit|Syscall param|Source and dest|"
                            r"Argument .* has a fishy|Jump to|Process terminating with default action of signal 11).*)", re.M)
SANITIZER_FAULT = re.compile(r"^(?:=+\d+=+ ?ERROR: \w*Sanitizer|WARNING: ThreadSanitizer|.*: runtime error: |==\d+== .* in loss record )")


def read_counts(text):
    """(checks, failures, skips, reasons), or None when the suite counted nothing."""
    checks = failures = skips = 0
    counted = False
    reasons = []
    for match in re.finditer(r"(?<!\d)\d+%: Checks: (\d+), Failures: (\d+), Errors: (\d+)$", text, re.M):
        counted = True
        checks += int(match.group(1))
        failures += int(match.group(2)) + int(match.group(3))
    for match in re.finditer(r"^SKIP (.+)$", text, re.M):
        skips += 1
        reasons.append(match.group(1))
    for match in re.finditer(r"^Ran (\d+) tests? in .*\n(?:.*\n)*?(?:OK|FAILED)(?: \((.*)\))?$", text, re.M):
        counted = True
        checks += int(match.group(1))
        words = dict(part.rsplit("=", 1) for part in (match.group(2) or "").split(", ") if "=" in part)
        failures += sum(int(words.get(word, 0)) for word in ("failures", "errors", "unexpected successes"))
        skips += int(words.get("skipped", 0))
    reasons += [f"{m.group(1)}: {m.group(2)}" for m in re.finditer(r"^(\S+) \(.*\)(?:\n.*)? \.\.\. skipped ['\"](.*)['\"]$", text, re.M)]
    return (checks, failures, skips, reasons) if counted and (checks or skips) else None


def shortened(text, n_lines):
    """The head and the tail of many lines, and of each: what a report says first and last tells most."""
    lines = [line if len(line) <= 600 else f"{line[:400]} [...] {line[-190:]}" for line in text.rstrip("\n").split("\n")]
    if len(lines) <= n_lines:
        return lines
    head = n_lines * 2 // 3
    return [*lines[:head], f"[{len(lines) - n_lines} lines left out]", *lines[head - n_lines:]]


def unittest_report(what, traceback):
    """(in one line, all of it): where it was called from last, and the whole of what was raised."""
    body = traceback.rstrip("\n").split("\n")
    end = next((i for i, line in enumerate(body) if i and not line.startswith("  ")), len(body) - 1)
    raised = shortened("\n".join(body[end:]), REPORT_LINES)
    return f"{what}: {raised[0]}", [what, *body[:end][-6:], *raised]


def read_reports(text):
    """Why cases failed, each as (in one line, all of it), in their own words."""
    reports = [unittest_report(*match.groups()) for match in UNITTEST_REPORT.finditer(text)]
    for match in CHECK_REPORT.finditer(text):
        lines = shortened(match.group(), REPORT_LINES)
        reports.append((lines[0], lines))
    lines = text.split("\n")
    for i, line in enumerate(lines):
        if SANITIZER_FAULT.match(line) or VALGRIND_FAULT.match(line):
            reports.append((line, shortened("\n".join(lines[i:i + REPORT_LINES]), REPORT_LINES)))
        elif line.startswith("Fatal Python error"):  # and where its threads were
            reports.append((line, shortened("\n".join(lines[i:]), 3 * REPORT_LINES)))
    return reports
