# SPDX-License-Identifier: Apache-2.0
"""Drives Debian's chromium without a window, by the WebDriver protocol of chromium-driver."""

import json
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

PATIENCE = 60  # seconds


def missing():
    """Returns the program that a browser needs and that is not installed; empty if all are."""
    return next((name for name in ("chromium", "chromedriver") if not shutil.which(name)), "")


class Browser:
    """A browser of one window. Used as a context."""

    def __init__(self, width=1200, height=900):
        self.profile = tempfile.TemporaryDirectory(prefix="trireme-browser-")
        self.driver = subprocess.Popen(
            ["chromedriver", "--port=0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.address = None
        for line in self.driver.stdout:
            if "started successfully on port" in line:
                self.address = "http://127.0.0.1:" + line.split()[-1].rstrip(".")
                break
        arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            f"--window-size={width},{height}",
            f"--user-data-dir={self.profile.name}",
        ]
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": arguments, "binary": shutil.which("chromium")},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        self.session = ""
        try:
            assert self.address, "chromedriver does not start"
            answer = self.call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        except BaseException:
            self.end()
            raise
        self.session = "/session/" + answer["sessionId"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.call("DELETE", "")
        finally:
            self.end()

    def end(self):
        self.driver.kill()
        self.driver.wait()
        self.driver.stdout.close()
        self.profile.cleanup()

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.address + self.session + path,
            data=data,
            method=method,
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from None

    def open(self, path):
        self.call("POST", "/url", {"url": "file://" + path})

    def run(self, script, *arguments):
        """Returns the result of the body of a JavaScript function."""
        return self.call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def find(self, selector):
        found = self.call("POST", "/element", {"using": "css selector", "value": selector})
        return next(iter(found.values()))

    def click(self, selector):
        self.call("POST", f"/element/{self.find(selector)}/click", {})

    def point_at(self, selector, x=0, y=0):
        """Moves the pointer to a place in an element: pixels from its middle."""
        element = {"element-6066-11e4-a52e-4f735466cecf": self.find(selector)}
        move = {"type": "pointerMove", "origin": element, "x": x, "y": y, "duration": 0}
        pointer = {"type": "pointer", "id": "mouse", "actions": [move]}
        self.call("POST", "/actions", {"actions": [pointer]})

    def messages(self):
        """Returns the messages of the console since the last call."""
        return [row["message"] for row in self.call("POST", "/se/log", {"type": "browser"})]

    def requests_of(self, path):
        """Returns the addresses that a page asked for since the last call, its own included."""
        rows = self.call("POST", "/se/log", {"type": "performance"})
        events = [json.loads(row["message"])["message"] for row in rows]
        return [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
            and event["params"]["documentURL"] == "file://" + path
        ]

    def wait_for(self, script, what):
        deadline = time.monotonic() + PATIENCE
        while not self.run(script):
            assert time.monotonic() < deadline, what
            time.sleep(0.05)
