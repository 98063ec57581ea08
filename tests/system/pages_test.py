# SPDX-License-Identifier: Apache-2.0
"""Tests manual pages and completions: they have every command and option of `--help`."""

import os
import re
import shutil
import subprocess
import unittest

import harness


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, **options)


def parts_of_help(*command):
    """Returns what stands at the begin of the lines of a help, by title: "Options", ..."""
    text = run(harness.TRIREME, *command, "--help").stdout
    parts, title = {}, ""
    for line in text.splitlines():
        if match := re.match(r"(\w+):$", line):
            title = match[1]
        elif re.match(r"  \S", line):
            # A long name has its text in the next line.
            is_short = len(line) > 30 and line[29] == " "
            parts.setdefault(title, []).append(line[: 30 if is_short else None].strip())
    return parts


def commands():
    return parts_of_help()["Subcommands"]


def options_of(*command):
    """Returns a pair for each name of an option: the name, and the value as in "KEY=VALUE ..."."""
    return [(name, value) for names, value in groups_of(*command) for name in names]


def groups_of(*command):
    """Returns a pair for each option: its names and its value."""
    groups = []
    for words in parts_of_help(*command)["Options"]:
        names, _, value = words.partition(" ")
        value = re.sub(r"(^| )REQUIRED$", "", value)
        groups.append((names.split(","), value))
    return groups


class Pages(harness.Case):
    samples = 64

    def setUp(self):
        super().setUp()
        os.makedirs(self.path("man"))

    def completion(self, shell):
        result = harness.run("completion", shell, cwd=self.folder)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        with open(self.path(shell), "w") as file:
            file.write(result.stdout)
        return self.path(shell)

    def pages(self):
        """Returns the texts of the manual pages as man prints them, by name."""
        result = harness.run("man", "man", cwd=self.folder)
        self.assertEqual((result.returncode, result.text), (0, ""))
        names = ["trireme.1"] + ["trireme-%s.1" % each for each in commands()]
        self.assertEqual(sorted(os.listdir(self.path("man"))), sorted(names))
        if shutil.which("man") is None:
            self.skipTest("no man")
        pages = {}
        for name in names:
            words = ("man", "--warnings", "-E", "ascii", "-l", self.path("man", name))
            page = run(*words, env={**os.environ, "MANWIDTH": "400", "MANPAGER": "cat"})
            self.assertEqual((page.returncode, page.stderr), (0, ""), name)
            pages[name] = page.stdout
        return pages

    def test_manual_pages_have_what_the_help_says(self):
        pages = self.pages()
        for command in ((), *((each,) for each in commands())):
            page = pages["-".join(("trireme", *command)) + ".1"]
            for names, value in groups_of(*command):
                line = (", ".join(names) + " " + value).strip()
                self.assertRegex(page, r"(?m)^ +%s( |$)" % re.escape(line))
            for words in parts_of_help(*command).get("Positionals", []):
                self.assertRegex(page, r"(?m)^ +%s " % words.split()[0])
            for line in run(harness.TRIREME, *command, "--help").stdout.splitlines():
                if line.startswith("  trireme ") or line.startswith("  mpirun "):
                    self.assertIn(line.strip(), page)
        for command in commands():
            self.assertRegex(pages["trireme.1"], r"(?m)^ +%s( |$)" % command)
            self.assertIn("trireme-%s(1)" % command, pages["trireme.1"])

    def test_a_link_is_followed_and_errors_name_the_page(self):
        os.symlink(self.path("kept.1"), self.path("man", "trireme.1"))
        result = harness.run("man", "man", cwd=self.folder)
        self.assertEqual(result.returncode, 2, result.text)
        self.assertIn("FOLDER man/trireme.1: is a link to nothing", result.stderr)
        open(self.path("kept.1"), "w").close()
        self.pages()
        self.assertTrue(os.path.islink(self.path("man", "trireme.1")))
        with open(self.path("kept.1")) as file:
            self.assertTrue(file.read().startswith(".TH TRIREME 1 "))
        os.remove(self.path("man", "trireme.1"))
        os.mkdir(self.path("man", "trireme.1"))
        for folder in ("man", "/proc"):
            result = harness.run("man", folder, cwd=self.folder)
            self.assertIn(result.returncode, (1, 2), result.text)
            self.assertIn("trireme: error: %s/trireme.1: " % folder, result.stderr)
            self.assertNotIn(".tmp", result.stderr)

    def test_hidden_commands_have_no_example_of_another_one(self):
        for command in ("man", "completion", "index-hdf5"):
            text = run(harness.TRIREME, command, "--help").stdout
            self.assertIn("Usage: trireme %s" % command, text)
            self.assertNotIn("Example", text)

    def complete(self, *words, separators=" \t\n"):
        """Returns what bash offers for the last of the words, in a shell with these separators of
        words, in a folder with the files `bash`, `bench` and `shard`."""
        folder = self.path("files")
        os.makedirs(folder, exist_ok=True)
        for name in ("bash", "bench", "shard"):
            open(os.path.join(folder, name), "w").close()
        script = (
            'source "$0"; IFS=$1; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _trireme;'
            '[ ${#COMPREPLY[@]} = 0 ] || printf "%s\\n" "${COMPREPLY[@]}"'
        )
        command = ("bash", "-c", script, self.completion("bash"), separators, "trireme", *words)
        result = run(*command, cwd=folder)
        self.assertEqual((result.returncode, result.stderr), (0, ""), words)
        return result.stdout.split()

    def test_bash_completes_commands_options_and_words(self):
        checked = run("bash", "-n", self.completion("bash"))
        self.assertEqual((checked.returncode, checked.stderr), (0, ""))
        own = [name for name, _ in options_of()]
        self.assertEqual(self.complete(""), commands() + own)
        self.assertEqual(self.complete("tr"), ["train"])
        for command in commands():
            names = [name for name, _ in options_of(command)]
            self.assertEqual(self.complete(command, "-"), names)
        for words, offered in {
            ("import", "--matrix-order", ""): ["linear", "conv1d"],
            ("import", "--matrix-order", "=", "c"): ["conv1d"],
            ("import", "--matrix-order", "="): ["linear", "conv1d"],
            ("train", "--restart", "re"): ["required"],
            ("bench", "co"): ["conv", "comm"],
            ("bench", "io", "co"): [],  # files
            ("train", ""): [],
            ("train", "--set", ""): [],
            ("train", "deck.toml", "--we"): ["--weights-only"],
            ("unknown", "-"): [],
            ("evaluate", "--split", ""): ["train", "validation", "test"],
            ("plan", "--topology", "d"): ["dragonfly"],
            ("plan", "--taper", "1"): ["1", "16"],
            ("plan", "--group", "da"): ["data"],
            # Words and names of files.
            ("generate", "--tokenizer", "be"): ["bench"],
            ("generate", "--tokenizer", ""): ["bytes", "bash", "bench", "shard"],
            ("train", "--restart", "sh"): ["shard"],
            # Paths with the names of commands.
            ("shard", "text", "shard", ""): [],
            ("bench", "io", "--folder", "bench", ""): [],
            ("shard", "i"): ["idx"],
        }.items():
            offers = self.complete(*words)
            self.assertEqual((offers[:1], set(offers)), (offered[:1], set(offered)), words)
        self.assertEqual(self.complete("tr", separators=":"), ["train"])
        self.assertEqual(self.complete("shard", "--on-error", "s", separators=""), ["stop", "skip"])
        if shutil.which("shellcheck"):
            checked = run("shellcheck", "-s", "bash", self.completion("bash"))
            self.assertEqual((checked.returncode, checked.stdout), (0, ""))

    def test_zsh_has_every_command_and_option(self):
        with open(self.completion("zsh")) as file:
            text = file.read()
        self.assertTrue(text.startswith("#compdef trireme\n"))
        for command in commands():
            self.assertIn("\n        '%s:" % command, text)
            part = text.split("\n        %s)\n" % command)[1].split(" ;;\n")[0]
            for name, value in options_of(command):
                self.assertRegex(part, r"(?m)^ +'\*?%s\[.*\]%s" % (name, ":" if value else "'"))
        self.assertRegex(text, r"'--split\[.*\]:.*:\(train validation test\)'")
        for name, words in (("restart", "auto required none"), ("tokenizer", "bytes")):
            action = r"'--%s\[.*\]:.*: _trireme_words_or_files %s'" % (name, words)
            self.assertRegex(text, action)
        if shutil.which("zsh") is None:
            self.skipTest("no zsh: its syntax is not checked")
        checked = run("zsh", "-n", self.path("zsh"))
        self.assertEqual((checked.returncode, checked.stderr), (0, ""))

    def test_wrong_arguments(self):
        for words, reason in {
            ("man",): "FOLDER is required",
            ("man", "none"): "none: is no folder; name an existing one",
            ("completion",): "SHELL is required",
            ("completion", "fish"): 'must be one of bash, zsh, but is "fish"',
        }.items():
            result = harness.run(*words, cwd=self.folder)
            self.assertEqual((result.returncode, result.stdout), (2, ""), result.text)
            self.assertIn(reason, result.stderr)


if __name__ == "__main__":
    harness.main(at_once=1)
