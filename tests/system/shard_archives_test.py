# SPDX-License-Identifier: Apache-2.0
"""Tests `trireme shard tar`: images and classes of archives, samples as in WebDataset, and damaged
archives."""

import bz2
import gzip
import lzma
import os
import subprocess
import tarfile

import harness

try:
    import numpy as np
    from PIL import Image

    import image_sources as sources
except ImportError as error:
    harness.skip("%s (scripts/install_deps.sh tests)" % error)


class Archives(sources.Case):
    def setUp(self):
        super().setUp()
        self.pixels = {}
        for i in range(12):
            self.pixels["%02d" % i] = sources.photograph(16, 20, i)
        self.png = {n: sources.encoded(Image.fromarray(p), "PNG") for n, p in self.pixels.items()}

    def check(self, expected, folder="made"):
        """`expected`: pairs of a key of an image and its class name or label, in order."""
        images, labels, classes = self.read(folder)
        self.assertEqual(len(images), len(expected))
        for (key, label), image, found in zip(expected, images, labels):
            self.assertTrue((image == self.pixels[key]).all(), key)
            self.assertEqual(classes[found] if classes else found, label, key)

    def test_folders_in_every_kind_of_archive(self):
        members = [("./set/%s/%s.png" % ("xy"[int(k) % 2], k), self.png[k]) for k in self.png]
        members.insert(3, ("set/readme.txt", b"hello"))
        members.insert(5, ("set/x/" + "long" * 60 + ".md", b"no image"))
        expected = [(k, "xy"[int(k) % 2]) for k in self.png]
        for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
            for mode in ("w", "w:gz", "w:xz", "w:bz2"):
                if form == tarfile.USTAR_FORMAT:
                    members = [m for m in members if len(m[0]) < 200]
                sources.tar(self.path("a.tar"), members, mode, format=form)
                text = self.make("tar", "a.tar", "--overwrite", "--shards", 3, ranks=2)
                self.assertIn("(folders in the archive)", text)
                self.check(expected)
        plain = self.contents("made")
        sources.tar(self.path("a.tar"), members)
        self.make("tar", "a.tar", "--overwrite", "--shards", 3)
        self.assertEqual(self.contents("made"), plain)

    def test_webdataset(self):
        keys = sorted(self.png)
        for extension, text, label in (
            ("cls", lambda i: b"%d" % (i % 5), lambda i: i % 5),
            ("cls", lambda i: b"%d\n" % (i % 5), lambda i: i % 5),
            ("txt", lambda i: b"class %d\n" % (i % 3), lambda i: "class %d" % (i % 3)),
            ("json", lambda i: b'{"label": %d, "x": 1}' % (i % 4), lambda i: i % 4),
            ("json", lambda i: b'{"cls": "n%d"}' % (i % 4), lambda i: "n%d" % (i % 4)),
        ):
            for order in (1, -1):
                members = []
                for i, key in enumerate(keys):
                    pair = [(key + ".png", self.png[key]), (key + "." + extension, text(i))]
                    members += pair[::order]
                half = len(members) // 2
                sources.tar(self.path("a.tar"), members[:half])
                sources.tar(self.path("b.tar"), members[half:])
                said = self.make("tar", "a.tar", "b.tar", "--overwrite")
                self.assertIn("(files beside the images)", said)
                self.check([(key, label(i)) for i, key in enumerate(keys)])
        # An image without a class, or with a wrong one, is a bad image.
        members = [("1.png", self.png["01"]), ("1.cls", b"1"), ("2.png", self.png["02"])]
        sources.tar(self.path("a.tar"), members + [("3.png", self.png["03"]), ("3.cls", b"-1")])
        self.refuse("tar", "a.tar", saying=["a.tar: 2.png: has no .cls, .txt or .json file"])
        self.make("tar", "a.tar", "--on-error", "skip", "--overwrite")
        self.check([("01", 1)])
        with open(self.path("made/skipped.csv")) as file:
            self.assertIn('the file .cls beside it has ""-1"", which is neither', file.read())
        # A file that names no class decides nothing.
        members = [("x/1.png", self.png["01"]), ("x/1.json", b'{"caption": "y"}')]
        sources.tar(self.path("a.tar"), members + [("x/._1.png", b"not an image")])
        self.make("tar", "a.tar", "--overwrite")
        self.check([("01", "x")])
        # A file of labels does.
        members = [("1.png", self.png["01"]), ("1.cls", b"[1]"), ("2.png", self.png["02"])]
        sources.tar(self.path("a.tar"), members + [("2.json", b"[" * 60000)])
        sources.write(self.path(""), {"labels": b"1.png\tred fox\n2.png\tdog\n"})
        self.make("tar", "a.tar", "--labels", "labels", "--overwrite")
        self.check([("01", "red fox"), ("02", "dog")])

    def test_samples_of_joined_archives(self):
        keys = sorted(self.png)
        for form in ("%06d", "v1.%d", "part/x.%d.y"):
            for part in range(2):
                members = []
                for i in range(3):
                    key, name = keys[3 * part + i], form % i
                    members.append((name + ".png", self.png[key]))
                    members.append((name + ".cls", b"%d" % (3 * part + i)))
                sources.tar(self.path("%d.tar" % part), members)
            subprocess.run(["tar", "-A", "-f", "0.tar", "1.tar"], cwd=self.folder, check=True)
            self.make("tar", "0.tar", "--overwrite")
            self.check([(keys[i], i) for i in range(6)])
        # A class that is appended to a sample which has one.
        sources.write(self.path(""), {"v1.2.cls": b"2", "v1.1.cls": b"9"})
        members = [("v1.1.png", self.png["01"]), ("v1.1.cls", b"1"), ("v1.2.png", self.png["02"])]
        sources.tar(self.path("a.tar"), members)
        subprocess.run(["tar", "-r", "-f", "a.tar", "v1.2.cls"], cwd=self.folder, check=True)
        self.make("tar", "a.tar", "--overwrite")
        self.check([("01", 1), ("02", 2)])
        subprocess.run(["tar", "-r", "-f", "a.tar", "v1.1.cls"], cwd=self.folder, check=True)
        saying = "a.tar: the class of v1.1.png is 1 in v1.1.cls, but 9 in v1.1.cls"
        self.refuse("tar", "a.tar", saying=saying)
        self.refuse("tar", "a.tar", "--on-error", "skip", saying=saying)
        sources.write(self.path(""), {"labels": b"v1.1.png 3\nv1.2.png 4\n"})
        self.make("tar", "a.tar", "--labels", "labels", "--overwrite")
        self.check([("01", 3), ("02", 4)])

    def test_one_image_of_a_sample_is_chosen(self):
        members = []
        for i, key in enumerate(sorted(self.png)[:4]):
            members.append(("%d.left.png" % i, self.png[key]))
            members.append(("%d.right.png" % i, self.png["11"]))
            members.append(("%d.json" % i, b'{"label": "c%d"}' % (i % 2)))
        for mode in ("w", "w:gz"):
            sources.tar(self.path("a.tar"), members, mode)
            self.refuse(
                "tar",
                "a.tar",
                saying=[
                    "0.left.png and 0.right.png share",
                    "--image left.png or --image right.png",
                ],
            )
            text = self.make("tar", "a.tar", "--image", "left.png", "--overwrite", ranks=2)
            self.assertIn("4 images of the source left out, as --image left.png says", text)
            self.check([("%02d" % i, "c%d" % (i % 2)) for i in range(4)])
        # Images of folders are all taken, with a warning.
        files = {
            "x/1.0.png": self.png["01"],
            "x/1.0.depth.png": self.png["11"],
            "y/more/2.png": self.png["02"],
        }
        sources.write(self.path("photos"), files)
        sources.tar(self.path("a.tar"), sorted(files.items()))
        for source, label, level in (
            (("folder", "photos"), "y", "outermost"),
            (("tar", "a.tar"), "more", "innermost"),
        ):
            text = self.make(*source, "--overwrite")
            self.assertIn("warning: made: 1 image has the name of another image", text)
            self.assertIn("x/1.0.depth.png beside x/1.0.png", text)
            self.assertIn("the %s ones: y/more/2.png is of the class %s" % (level, label), text)
            self.assertIn("3 samples", text)
            text = self.make(*source, "--image", "png", "--overwrite")
            self.assertNotIn("warning", text)
            labels = ["x", "y"] if label == "y" else ["x", "more"]
            self.check(list(zip(("01", "02"), labels)))
            self.refuse(*source, "--image", "left.png", saying="--image left.png takes none of")
            # The other class would be the class 0.
            kept = 'leaves the class "%s" without an image' % label
            self.refuse(*source, "--image", "depth.png", saying="--image depth.png " + kept)
        self.refuse("cifar", "a.tar", "--image", "png", saying="--image belongs to another format")

    def test_hard_links_have_the_content_of_their_targets(self):
        one, two = self.png["01"], self.png["02"]
        hard = lambda target: sources.link(target, tarfile.LNKTYPE)
        members = [
            (".store/one", one),
            ("./two", two),
            ("seven", b"7\n"),
            ("1.png", hard(".store/one")),
            ("1.cls", hard("seven")),
            ("2.png", hard("./two")),
            ("2.cls", b"8"),
            ("3.png", hard("1.png")),
            ("3.cls", hard("2.cls")),
        ]
        sources.tar(self.path("a.tar"), members)
        self.make("tar", "a.tar")
        self.check([("01", 7), ("02", 8), ("01", 8)])
        # Images of a compressed archive are read later, classes are not.
        sources.tar(self.path("a.tar.gz"), members, "w:gz")
        self.refuse("tar", "a.tar.gz", saying="a.tar.gz: 1.png: the file .cls beside it is a hard")
        sources.tar(
            self.path("a.tar.gz"), [(n.replace(".cls", ".md"), m) for n, m in members], "w:gz"
        )
        sources.write(self.path(""), {"labels": b"1 a\n2 b\n3 c\n"})
        self.make("tar", "a.tar.gz", "--labels", "labels", "--overwrite")
        self.check([("01", "a"), ("02", "b"), ("01", "c")])
        sources.tar(self.path("in.tar"), [("1.png", one)])
        with open(self.path("in.tar"), "rb") as file:
            inner = file.read()
        sources.tar(self.path("a.tar"), [("x.tar", inner), ("y.tar", hard("x.tar"))])
        self.refuse("tar", "a.tar", saying="a.tar: y.tar: is a hard link to an archive")

    def test_archives_in_an_archive_as_imagenet_has_them(self):
        inner = []
        for name in ("n02", "n01"):
            keys = [k for k in sorted(self.png) if int(k) % 2 == int(name[-1]) - 1]
            sources.tar(
                self.path(name + ".tar"),
                [(n + "_" + k + ".JPEG.png", self.png[k]) for k in keys for n in [name]],
            )
            with open(self.path(name + ".tar"), "rb") as file:
                inner.append((name + ".tar", file.read()))
        sources.tar(self.path("all.tar"), inner)
        expected = [(k, "n02") for k in sorted(self.png) if int(k) % 2 == 1]
        expected += [(k, "n01") for k in sorted(self.png) if int(k) % 2 == 0]
        self.assertIn("(names of the archives)", self.make("tar", "all.tar"))
        self.check(expected)
        self.make("tar", "n02.tar", "n01.tar", "--overwrite")
        self.check(expected)
        # WebDataset's files in inner archives.
        for i, name in enumerate("ab"):
            key = "0%d" % i
            members = [(key + ".png", self.png[key]), (key + ".cls", b"%d" % (7 - i))]
            sources.tar(self.path(name + ".tar"), members)
        content = []
        for name in ("a.tar", "b.tar"):
            with open(self.path(name), "rb") as file:
                content.append((name, file.read()))
        sources.tar(self.path("nest.tar"), content)
        self.make("tar", "nest.tar", out="nested")
        self.check([("00", 7), ("01", 6)], folder="nested")
        # Validation: a flat archive with a file of labels, and the classes of the training set.
        flat = [("val_%s.png" % k, self.png[k]) for k in sorted(self.png)]
        sources.tar(self.path("val.tar"), flat)
        lines = "".join("val_%s,%s 1 2 3 4\n" % (k, "n02") for k in sorted(self.png))
        sources.write(self.path(""), {"val.csv": ("ImageId,Boxes\n" + lines).encode()})
        self.make("tar", "val.tar", "--labels", "val.csv", "--classes", "made", out="val")
        self.check([(k, "n02") for k in sorted(self.png)], folder="val")
        self.assertEqual(self.read("val")[2], ["n01", "n02"])

    def test_what_is_no_image_in_an_archive(self):
        outside = self.path("outside.png")
        with open(outside, "wb") as file:
            file.write(self.png["00"])
        good = [("a/1.png", self.png["01"])]
        for name, member, reason in (
            ("a/link.png", sources.link(outside), "is a link"),
            (
                "a/hard.png",
                sources.link("a/2.png", tarfile.LNKTYPE),
                "is a hard link to a/2.png, which is not before it",
            ),
            ("a/empty.png", b"", "is empty"),
        ):
            sources.tar(self.path("a.tar"), good + [(name, member)])
            self.refuse("tar", "a.tar", saying=["a.tar: %s: %s" % (name, reason)])
            self.make("tar", "a.tar", "--on-error", "skip", "--overwrite")
            self.check([("01", "a")])
        # Nothing is extracted, so names that lead elsewhere are only names.
        before = sorted(os.listdir(self.folder))
        sources.tar(
            self.path("a.tar"),
            good + [("../../b/2.png", self.png["02"]), ("/c/3.png", self.png["03"])],
        )
        self.make("tar", "a.tar", "--overwrite")
        self.check([("01", "a"), ("02", "b"), ("03", "c")])
        self.assertEqual(sorted(os.listdir(self.folder)), before)

    def test_archives_one_after_the_other_and_hidden_files(self):
        sources.tar(self.path("a.tar"), [("x/1.png", self.png["01"]), (".git/2.png", b"no image")])
        sources.tar(
            self.path("b.tar"), [("y/2.png", self.png["02"]), ("y/link.tar", sources.link("a"))]
        )
        with open(self.path("both.tar"), "wb") as both:
            for name in ("a.tar", "b.tar"):
                with open(self.path(name), "rb") as file:
                    both.write(file.read())
        self.make("tar", "both.tar")
        self.check([("01", "x"), ("02", "y")])

    def test_damaged_archives_are_refused(self):
        members = [("a/%s.png" % k, self.png[k]) for k in sorted(self.png)]
        sources.tar(self.path("a.tar"), members)
        with open(self.path("a.tar"), "rb") as file:
            whole = file.read()
        last = whole.rindex(b"a/11.png")
        for name, content in (
            ("cut in an image", whole[: last + 600]),
            ("cut in a header", whole[: last + 100]),
            ("a size that is too long", self.with_size(whole, last, 1 << 30)),
            ("a checksum", whole[:last] + b"b" + whole[last + 1 :]),
            ("no archive", b"these are words\n" * 100),
            ("empty", b""),
        ):
            with self.subTest(name):
                for file_name, data in (("a.tar", content), ("a.tar.gz", gzip.compress(content))):
                    sources.write(self.path(""), {file_name: data})
                    self.refuse("tar", file_name, saying=file_name + ": ")
        compressed = bytearray(gzip.compress(whole))
        compressed[-5] ^= 1  # the checksum
        sources.write(self.path(""), {"a.tar.gz": bytes(compressed)})
        self.refuse("tar", "a.tar.gz", saying="a.tar.gz: is damaged")
        sources.write(self.path(""), {"a.tar.gz": gzip.compress(whole)[:-200]})
        self.refuse("tar", "a.tar.gz", saying="a.tar.gz: cannot be read as an archive")

    def test_archives_of_one_name_are_one_class_with_a_warning(self):
        for name, key in (("a/cat.tar", "01"), ("b/cat.tar", "02"), ("dog.tar", "03")):
            os.makedirs(self.path(os.path.dirname(name)), exist_ok=True)
            sources.tar(self.path(name), [(key + ".png", self.png[key])])
        warning = "the archives %s and %s have one name, so their images are of one class"
        text = self.make("tar", "a/cat.tar", "b/cat.tar", "dog.tar")
        self.assertIn(warning % ("a/cat.tar", "b/cat.tar"), text)
        self.check([("01", "cat"), ("02", "cat"), ("03", "dog")])
        text = self.make("tar", "dog.tar", "a/cat.tar", "dog.tar", "--overwrite")
        self.assertIn(warning % ("dog.tar", "dog.tar"), text)
        self.assertNotIn("one name", self.make("tar", "dog.tar", "a/cat.tar", "--overwrite"))

    def test_damage_at_the_beginning_of_a_later_part_is_found(self):
        members = [("a/%s.png" % k, self.png[k]) for k in sorted(self.png)]
        sources.tar(self.path("a.tar"), members)
        with open(self.path("a.tar"), "rb") as file:
            whole = file.read()
        for ending, pack in (("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)):
            name = "a.tar." + ending
            first, second = pack(whole[:4096]), pack(whole[4096:])
            sources.write(self.path(""), {name: first + second + bytes(512)})
            self.make("tar", name, "--overwrite")
            self.check([(k, "a") for k in sorted(self.png)])
            damaged = bytes([second[0] ^ 1]) + second[1:]
            for rest in (damaged, second + b"junk" * 4, second[:2], second + bytes(9) + b"x"):
                with self.subTest(name, rest=rest[:8]):
                    sources.write(self.path(""), {name: first + rest})
                    self.refuse("tar", name, saying=name + ": ")
        sources.write(self.path(""), {"a.tar.gz": bz2.compress(gzip.compress(whole))})
        self.refuse(
            "tar", "a.tar.gz", saying="a.tar.gz: is packed twice: the bzip2 file holds a gzip"
        )

    @staticmethod
    def with_size(archive, at, size):
        """Returns the archive with another size in the header at byte `at`."""
        header = bytearray(archive[at : at + 512])
        header[124:136] = b"%011o\0" % size
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        return archive[:at] + bytes(header) + archive[at + 512 :]

    def test_a_million_empty_entries_cost_little(self):
        entry = tarfile.TarInfo("a/x.md")
        header = entry.tobuf()
        with open(self.path("many.tar"), "wb") as file:
            for _ in range(1000):
                file.write(header * 1000)
            file.write(bytes(1024))
        seconds, peak, result = self.cost("tar", "many.tar")
        self.assertEqual(result.returncode, 2)
        self.assertIn("many.tar: no JPEG or PNG file", result.stdout)
        self.assertLess(seconds, sources.BIG_SECONDS)
        self.assertLess(peak, sources.BIG_BYTES)


if __name__ == "__main__":
    harness.main(at_once=2)
