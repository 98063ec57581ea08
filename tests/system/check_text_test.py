# SPDX-License-Identifier: Apache-2.0
"""Tests check_text.py: it finds each kind of violation in a small tree.

A correct tree has none.
"""

import shutil
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))
import check_text  # noqa: E402


class CheckText(unittest.TestCase):
    def setUp(self):
        self.root = Path(tempfile.mkdtemp(prefix="trireme_text_")).resolve()
        self.write("CMakeLists.txt", "project(example)\n")
        self.write("src/store.cpp", "// Holds weights.\nclass Store {\n  void acquire();\n};\n")
        self.write("docs/guide.md", "# Guide\n\nSee [the store](#the-store).\n\n## The store\n")

    def tearDown(self):
        shutil.rmtree(self.root)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        mark = {".cpp": "//", ".txt": "#", ".py": "#"}.get(path.suffix)
        path.write_text(f"{mark} {check_text.LICENSE}\n{mark}\n{text}" if mark else text)

    def expect_one(self, *words):
        found = list(check_text.check(self.root))
        self.assertEqual(len(found), 1, found)
        for word in words:
            self.assertIn(word, found[0])

    def test_a_correct_tree(self):
        self.assertEqual(list(check_text.check(self.root)), [])

    def test_wide_lines_of_code_and_comments(self):
        self.write("src/wide.cpp", "int x;\n//" + 99 * "-" + "\n")
        self.expect_one("src/wide.cpp:4", "101 columns")

    def test_wide_lines_of_documents_outside_tables_code_and_links(self):
        wide = "a" * 101
        self.write("docs/wide.md", f"# W\n\n| {wide} |\n\n```\n{wide}\n```\n")
        self.test_a_correct_tree()
        self.write("docs/wide.md", f"# W\n\n{wide}\n")
        self.expect_one("docs/wide.md:3", "101 columns")

    def test_a_document_that_is_too_long(self):
        self.write("README.md", 120 * "\n")
        self.write("docs/other.md", 1000 * "\n")
        self.test_a_correct_tree()
        self.write("README.md", 121 * "\n")
        self.expect_one("README.md:121", "121 lines, at most 120")

    def test_a_long_source_without_a_head(self):
        self.write("src/long.cpp", 101 * "int x;\n")
        self.expect_one("src/long.cpp:1", "without a comment at the top")
        self.write("src/long.cpp", "// Declares x.\n" + 101 * "int x;\n")
        self.test_a_correct_tree()
        self.write("scripts/long.py", 101 * "x = 1\n")
        self.expect_one("scripts/long.py:1", "without a comment at the top")
        self.write("scripts/long.py", '"""Sets x."""\n' + 101 * "x = 1\n")
        self.test_a_correct_tree()

    def test_a_source_that_is_too_long(self):
        self.write("tests/long_test.cpp", "// Declares x.\n" + 600 * "int x;\n")
        self.expect_one("tests/long_test.cpp:601", "603 lines, at most 600")

    def test_names_of_tests(self):
        def write(macro, name):
            self.write("tests/a_test.cpp", f"{macro}(Store,\n     {name}) {{}}\n")

        for macro in ("TEST", "TEST_F", "TEST_P", "TYPED_TEST"):
            write(macro, 60 * "a")
            self.test_a_correct_tree()
            write(macro, 61 * "a")
            self.expect_one("tests/a_test.cpp:3", "61 characters, at most 60")
            write(macro, "KeepsWhatItHolds")
            self.expect_one("tests/a_test.cpp:3", "KeepsWhatItHolds")
            write(macro, "KeepsAllWhateverTheOrder")
            self.test_a_correct_tree()

    def test_documents_beside_tests(self):
        self.write("tests/data/README.md", "[a](missing.md)\n")
        self.expect_one("tests/data/README.md:1", "leads to no file")

    def test_a_long_sentence_over_several_lines(self):
        self.write("src/talk.cpp", "/// " + 20 * "way " + "\n/// " + 21 * "way " + "end.\nint x;\n")
        self.expect_one("src/talk.cpp:3", "a sentence of 42 words")

    def test_links_to_missing_files_and_headings(self):
        self.write("docs/guide.md", "# Guide\n\n[a](missing.md)\n")
        self.expect_one("docs/guide.md:3", "leads to no file")
        self.write("docs/guide.md", "# Guide\n\n[a](#missing)\n")
        self.expect_one("docs/guide.md:3", "leads to no heading")

    def test_paths_in_back_ticks(self):
        for text in (
            "`src/store.cpp` `./src/store.cpp` `src/` `docs/missing.md` src/missing.cpp",
            "`src/NAME.cpp` `src/*.cpp` `src/<name>.cpp` `src/{a,b}.cpp` `src/...` `src/a_NAME/b`",
            "`scripts/missing.py --all` `tests/missing/READER`",
            "`src/missing.cpp` and (new) again: `src/missing.cpp`\n(new)",
            "```\n`src/missing.cpp`\n```",
        ):
            self.write("docs/paths.md", f"# P\n\n{text}\n")
            self.test_a_correct_tree()
        for name in ("src/missing.cpp", "tests/README.md", "tests/CMakeLists.txt", "slurm/a_b/c"):
            self.write("docs/paths.md", f"# P\n\nIn\n`./{name}`.\n`src/other.cpp` (new)\n")
            self.expect_one("docs/paths.md:4", f"{name} does not exist")
        self.write("docs/paths.md", "# P\n")
        self.write("CHANGELOG.md", "`src/missing.cpp`\n")  # of an earlier version
        self.test_a_correct_tree()

    def test_links_over_two_lines(self):
        self.write("docs/guide.md", "# Guide\n\n[a\nb](missing.md)\n")
        self.expect_one("docs/guide.md:3", "leads to no file")

    def test_sources_without_a_license(self):
        (self.root / "src/bare.cpp").write_text("int x;\n")
        self.expect_one("src/bare.cpp:1", check_text.LICENSE)


if __name__ == "__main__":
    unittest.main()
