#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""failed_tests.py FILE...: prints the failed tests of ctest's JUnit reports and their last
lines."""

import sys
import xml.etree.ElementTree as xml

LINES = 60

for path in sys.argv[1:]:
    for case in xml.parse(path).getroot().iter("testcase"):
        if case.get("status") != "fail":
            continue
        failure = case.find("failure")
        reason = failure.get("message") if failure is not None else None
        said = (case.findtext("system-out") or "").rstrip().splitlines()
        print(
            f"-- {case.get('name')}: {reason or 'failed'} after {float(case.get('time', 0)):.0f} s"
        )
        print("\n".join(said[-LINES:]))
