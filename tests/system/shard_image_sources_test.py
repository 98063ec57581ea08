"""Tests `trireme shard folder|tar|cifar|idx`: shards hold the images of the source, whatever its
form, and wrong input costs little."""

import csv
import gzip
import json
import os
import resource
import struct
import subprocess
import tarfile
import time
import unittest

import harness

try:
    import h5py
    import numpy as np
    from PIL import Image

    import image_sources as sources
except ImportError as error:
    harness.skip("%s (scripts/install_deps.sh tests)" % error)

BIG_SECONDS, BIG_BYTES = 4, 512 << 20


def covering(image, height, width):
    """Returns what --resize HEIGHTxWIDTH makes of a Pillow image."""
    scaled = (image.width * height // image.height, height)
    if scaled[0] < width:
        scaled = (width, max(image.height * width // image.width, height))
    left, top = round((scaled[0] - width) / 2), round((scaled[1] - height) / 2)
    resized = image.resize(scaled, Image.Resampling.BILINEAR)
    return np.asarray(resized.crop((left, top, left + width, top + height)))


class Sources(harness.Case):
    def make(self, *arguments, expect=0, ranks=1, out="made"):
        words = ("shard",) + arguments + ("--out", out)
        result = harness.run(*words, ranks=ranks, cwd=self.folder)
        self.assertEqual(result.returncode, expect, "%s: %s" % (words, result.text))
        return result.text

    def refuse(self, *arguments, saying):
        text = self.make(*arguments, expect=2, out="refused")
        for part in [saying] if isinstance(saying, str) else saying:
            self.assertIn(part, text)
        self.assertFalse(os.path.exists(self.path("refused")), text)

    def read(self, folder="made"):
        """Returns images, labels and class names of a dataset."""
        images, labels, classes = [], [], []
        for name in sorted(os.listdir(self.path(folder))):
            if not name.endswith(".h5"):
                continue
            with h5py.File(self.path(folder, name)) as file:
                self.assertIsNone(file["images"].chunks)
                images.append(file["images"][:])
                labels.append(file["labels"][:])
                classes = list(file["classes"].asstr()) if "classes" in file else []
        return np.concatenate(images), np.concatenate(labels), classes


class Folders(Sources):
    def setUp(self):
        super().setUp()
        self.forms = sources.every_form()
        names = sorted(self.forms)
        self.files = {
            "%s/%s" % ("ab"[i % 2], name): self.forms[name] for i, name in enumerate(names)
        }
        sources.write(self.path("photos"), self.files)
        sources.write(
            self.path("photos"), {"a/notes.md": b"", ".hidden/x.jpg": b"", "a/.x.jpg": b""}
        )

    def pixels_of(self, name):
        with Image.open(self.path("photos", name)) as file:
            return file.convert("RGB")

    def test_every_form_is_read_as_pillow_reads_it(self):
        text = self.make("folder", "photos")
        self.assertIn("2 classes (folders)", text)
        self.assertIn("1 file of the source ignored", text)
        images, labels, classes = self.read()
        self.assertEqual(classes, ["a", "b"])
        self.assertEqual(len(images), len(self.files))
        for name, image, label in zip(sorted(self.files), images, labels):
            self.assertEqual(classes[label], name[0])
            self.assertTrue((image == np.asarray(self.pixels_of(name))).all(), name)
        self.assertIn("whole", harness.run("verify", "made", cwd=self.folder).stdout)

    def test_each_image_is_scaled_as_pillow_scales_it(self):
        odd = np.asarray(sources.photograph(33, 211, 5))
        sources.write(
            self.path("photos"), {"a/wide.png": sources.encoded(Image.fromarray(odd), "PNG")}
        )
        for height, width in ((48, 48), (30, 90), (200, 150), (75, 100), (1, 1)):
            self.make("folder", "photos", "--resize", "%dx%d" % (height, width), "--overwrite")
            images, _, _ = self.read()
            names = sorted(self.files | {"a/wide.png": b""})
            for name, image in zip(names, images):
                expected = covering(self.pixels_of(name), height, width)
                self.assertTrue((image == expected).all(), (name, height, width))

    def test_the_bytes_are_the_same_at_any_number_of_ranks(self):
        options = ("folder", "photos", "--shards", 5, "--shuffle", 7, "--resize", "16x16")
        self.make(*options)
        for ranks in (2, 4):
            self.make(*options, "--overwrite", ranks=ranks, out="again")
            self.assertEqual(self.contents("again"), self.contents("made"))
        # The seed decides the order, and every image is there once.
        self.make(*options[:-4], "--shuffle", 8, "--resize", "16x16", out="other")
        first, second = self.read()[0], self.read("other")[0]
        self.assertFalse((first == second).all())
        self.assertEqual(sorted(i.tobytes() for i in first), sorted(i.tobytes() for i in second))
        self.assertEqual(
            sorted(i.tobytes() for i in first), sorted(i.tobytes() for i in self.unshuffled())
        )

    def unshuffled(self):
        self.make("folder", "photos", "--resize", "16x16", out="plain")
        return self.read("plain")[0]

    def test_a_part_of_the_source_and_classes_of_another_dataset(self):
        self.make("folder", "photos", "--range", "2:6")
        images, labels, _ = self.read()
        names = sorted(self.files)[2:6]
        for name, image in zip(names, images):
            self.assertTrue((image == np.asarray(self.pixels_of(name))).all(), name)
        # The classes of a dataset, of a file, and between commas; a class may have no image.
        sources.write(self.path(""), {"names.txt": b"b\r\nc\na\n"})
        for given, expected in (("names.txt", "bca"), ("b,c,a", "bca"), ("made", "ab")):
            self.make("folder", "photos", "--classes", given, out="of " + given)
            _, labels, classes = self.read("of " + given)
            self.assertEqual(classes, list(expected))
            self.assertEqual([classes[l] for l in labels], [n[0] for n in sorted(self.files)])
        self.refuse(
            "folder", "photos", "--classes", "a,c", saying="its class b is not one of the 2"
        )
        self.refuse("folder", "photos", "--classes", "nams", saying="neither a file nor a dataset")
        sources.write(self.path(""), {"names.txt": b"a\nb" + b"b" * 300})
        self.refuse("folder", "photos", "--classes", "names.txt", saying="longer than 256 bytes")

    def test_a_flat_folder_with_a_file_of_labels(self):
        flat = {"%d.png" % i: self.forms["color.png"] for i in range(4)}
        sources.write(self.path("flat"), flat)
        refuse = lambda lines, saying: (
            sources.write(self.path(""), {"labels": lines}),
            self.refuse("folder", "flat", "--labels", "labels", saying=saying),
        )
        for lines, classes in (
            (b"0.png 3\n1.png 1\n3.png 0\n2.png 2\n", []),
            (
                b"ImageId,PredictionString\n3,dog 1 2 3 4\n2,cat 5\n1,ant\n0,cat 7 8\n",
                "ant cat dog",
            ),
        ):
            sources.write(self.path(""), {"labels": lines})
            self.make("folder", "flat", "--labels", "labels", "--overwrite")
            _, labels, names = self.read()
            self.assertEqual(list(labels), [3, 1, 2, 0] if not classes else [1, 0, 1, 2])
            self.assertEqual(names, classes.split() if classes else [])
        self.refuse("folder", "flat", saying=["flat/0.png", "--labels FILE"])
        # A path is preferred to a file name.
        names = ("1.png", "a/1.png", "b/2.png")
        sources.write(self.path("deep"), {name: flat["0.png"] for name in names})
        sources.write(self.path(""), {"labels": b"1.png x\na/1.png y\n2 z\n"})
        self.make("folder", "deep", "--labels", "labels", out="deep labels")
        self.assertEqual(list(self.read("deep labels")[1]), [0, 1, 2])
        sources.write(self.path(""), {"labels": b"1.png x\na/1.png y\n1 z\n"})
        self.refuse("folder", "deep", "--labels", "labels", saying="labels:3: several images are")
        refuse(b"0.png 3\n1.png 1\n3.png 0\n", ["flat/2.png: has no line in labels"])
        refuse(b"0.png 3\n9.png 1\n", ["labels:2: no image is called 9.png"])
        refuse(b"0.png 3\n0.png 1\n", ["labels:2: 0.png has a label already"])
        refuse(b"0.png\n", ['labels:1: "0.png" has no label'])
        refuse(b"0 -1\n1 1\n2 1\n3 1\n", ["labels:1: label -1 is not a class"])
        refuse(b"0 99999999\n1 1\n2 1\n3 1\n", ["labels:1: label 99999999 is not a class"])
        refuse(b"", ["labels: is empty"])

    def test_folders_that_are_no_source_are_refused(self):
        sources.write(self.path("photos"), {"c/readme.txt": b""})
        self.refuse("folder", "photos", saying=["photos/c: contains no JPEG or PNG file"])
        sources.write(self.path("none"), {"c/readme.txt": b""})
        self.refuse("folder", "none", saying="contains no JPEG or PNG file")
        out = os.path.join("photos", "a", "out")
        text = self.make("folder", "photos", expect=2, out=out)
        self.assertIn("is in the source photos", text)
        self.refuse("folder", "absent", saying="absent: there is no such folder")
        self.refuse("folder", "photos", "none", saying="one is needed")
        self.refuse(
            "folder", "photos", "--type", "uint8", saying="--type belongs to another format"
        )
        for wrong in ("0x4", "4", "x", "4x", "4x4x4", "9999x1", "-1x4", "4.0x4"):
            self.refuse("folder", "photos", "--resize", wrong, saying="--resize " + wrong)

    def test_files_of_other_kinds_are_not_left_out_in_silence(self):
        os.symlink("nowhere.png", self.path("photos/a/broken.png"))
        self.refuse("folder", "photos", saying="photos/a/broken.png: ")
        os.remove(self.path("photos/a/broken.png"))
        os.mkfifo(self.path("photos/a/pipe.png"))
        self.refuse("folder", "photos", saying="photos/a/pipe.png: is no regular file")

    def test_a_list_of_another_program_stays(self):
        sources.write(self.path("made"), {"skipped.csv": b"mine\n"})
        self.make("folder", "photos")
        self.assertEqual(self.contents("made")["skipped.csv"], b"mine\n")

    def test_a_link_to_a_folder_is_a_class_but_circles_end(self):
        os.symlink("a", self.path("photos/linked"))
        os.symlink("..", self.path("photos/a/around"))
        self.make("folder", "photos")
        _, labels, classes = self.read()
        self.assertEqual(classes, ["a", "b", "linked"])
        self.assertEqual(list(labels).count(0), list(labels).count(2))

    def test_images_of_different_sizes_need_a_size(self):
        other = sources.encoded(Image.fromarray(sources.photograph(40, 60, 1)), "PNG")
        sources.write(self.path("photos"), {"b/z.png": other})
        for skip in ((), ("--on-error", "skip")):
            self.refuse(
                "folder",
                "photos",
                *skip,
                saying=["photos/b/z.png: has 40 x 60 pixels", "--resize 75x100"],
            )


class BadImages(Sources):
    def setUp(self):
        super().setUp()
        self.bad = {n: b for n, b in sources.bad_images().items() if b[1] is not None}
        self.good = {}
        for i in range(8):
            image = Image.fromarray(sources.photograph(20, 20, i))
            self.good["a/%d.png" % i] = sources.encoded(image, "PNG")

    def test_each_costs_little_and_is_named_with_its_fault(self):
        for name, (content, reason) in sources.bad_images().items():
            with self.subTest(name):
                folder = "only_" + name
                sources.write(self.path(folder), {"a/" + name: content})
                seconds, peak, result = self.cost("folder", folder, "--resize", "8x8")
                self.assertEqual(result.returncode, 0 if reason is None else 2, result.stdout)
                if reason is not None:
                    self.assertIn("%s/a/%s: " % (folder, name), result.stdout)
                    self.assertIn(reason, result.stdout)
                self.assertLess(seconds, BIG_SECONDS)
                self.assertLess(peak, BIG_BYTES)

    def cost(self, *arguments):
        """Runs `shard` and returns its seconds, its largest memory in bytes, and the result."""
        command = harness.command("shard", *arguments, "--out", "cost", "--overwrite")
        script = (
            "import resource, subprocess, sys; r = subprocess.run(sys.argv[1:]);"
            "print('peak', resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss);"
            "sys.exit(r.returncode)"
        )
        begin = time.monotonic()
        result = subprocess.run(
            [os.sys.executable, "-c", script] + [str(word) for word in command],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=harness.environment(),
        )
        seconds = time.monotonic() - begin
        peak = int(result.stdout.rsplit("peak ", 1)[1]) << 10
        return seconds, peak, result

    def test_skipped_images_shorten_their_own_shard_and_are_listed(self):
        sources.write(self.path("photos"), self.good)
        self.make("folder", "photos", "--shards", 4, out="whole")
        for name in ("a/2.png", "a/5.png"):
            sources.write(self.path("photos"), {name: self.good[name][:60]})
        self.refuse("folder", "photos", saying=["photos/a/2.png: ", "--on-error skip"])
        options = ("folder", "photos", "--shards", 4, "--on-error", "skip")
        text = self.make(*options)
        self.assertIn("2 images: skipped, as made/skipped.csv says", text)
        with open(self.path("made/skipped.csv")) as file:
            rows = list(csv.reader(file))
        self.assertEqual(rows[0], ["image", "reason"])
        self.assertEqual([row[0] for row in rows[1:]], ["photos/a/2.png", "photos/a/5.png"])
        whole, made = self.contents("whole"), self.contents("made")
        for shard, same in enumerate((True, False, False, True)):
            name = "shard_%05d.h5" % shard
            self.assertEqual(whole[name] == made[name], same, name)
        self.make(*options, ranks=4, out="four")
        self.assertEqual(self.contents("four"), made)
        self.assertEqual(harness.run("verify", "made", cwd=self.folder).returncode, 0)
        # A list of an older dataset does not stay beside a new one.
        sources.write(self.path("photos"), self.good)
        self.make(*options, "--overwrite")
        self.assertEqual(self.contents("made"), whole)

    def test_a_source_without_a_usable_image_is_refused(self):
        sources.write(self.path("photos"), {"a/" + n: b for n, (b, _) in self.bad.items()})
        for size in ((), ("--resize", "8x8")):
            self.refuse(
                "folder",
                "photos",
                "--on-error",
                "skip",
                *size,
                saying="none of the %d images can be used" % len(self.bad),
            )


class Archives(Sources):
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
            ("a/hard.png", sources.link("a/1.png", tarfile.LNKTYPE), "is a link"),
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
        seconds, peak, result = BadImages.cost(self, "tar", "many.tar")
        self.assertEqual(result.returncode, 2)
        self.assertIn("many.tar: no JPEG or PNG file", result.stdout)
        self.assertLess(seconds, BIG_SECONDS)
        self.assertLess(peak, BIG_BYTES)


class Records(Sources):
    def test_cifar(self):
        rng = np.random.default_rng(1)
        for labels, classes in ((1, 10), (2, 100)):
            images = rng.integers(0, 256, (30, 3, 32, 32), dtype=np.uint8)
            numbers = rng.integers(0, classes, (30, labels), dtype=np.uint8)
            for name, part in (("one.bin", slice(0, 20)), ("two.bin", slice(20, 30))):
                records = np.concatenate([numbers[part], images[part].reshape(-1, 3072)], 1)
                sources.write(self.path(""), {name: records.tobytes()})
            text = self.make("cifar", "one.bin", "two.bin", "--shards", 4, "--overwrite", ranks=3)
            self.assertIn("(CIFAR-%d)" % classes, text)
            made, found, _ = self.read()
            self.assertTrue((made == images.transpose(0, 2, 3, 1)).all())
            self.assertTrue((found == numbers[:, -1]).all())
        sources.write(self.path(""), {"one.bin": records.tobytes()[:-1]})
        self.refuse("cifar", "one.bin", saying="one.bin: no file of records of 3073 bytes")
        sources.write(self.path(""), {"one.bin": b"\x0a" + bytes(3072)})
        self.refuse("cifar", "one.bin", saying="one.bin: record 0: label 10 is not one of the 10")

    def test_cifar_of_a_length_that_fits_both_versions(self):
        rng = np.random.default_rng(3)

        def write(name, records, labels, classes, low=200):
            images = rng.integers(low, 256, (records, 3072), dtype=np.uint8)
            numbers = rng.integers(0, classes, (records, labels), dtype=np.uint8)
            content = np.concatenate([numbers, images], 1).tobytes()
            sources.write(self.path(""), {name: content})
            return list(numbers[:, -1])

        for records, labels, classes in ((2 * 3073, 2, 100), (3074, 1, 10), (3073, 2, 10)):
            found = write("a.bin", records, labels, classes)
            text = self.make("cifar", "a.bin", "--overwrite")
            self.assertIn("CIFAR-100" if labels == 2 else "CIFAR-10)", text)
            self.assertEqual(list(self.read()[1]), found)
        # Of two files, one of another length decides.
        found = write("a.bin", 3073, 2, 100) + write("b.bin", 7, 2, 100)
        self.make("cifar", "a.bin", "b.bin", "--overwrite")
        self.assertEqual(list(self.read()[1]), found)

    def test_idx_plain_and_compressed_scaled_and_shuffled(self):
        rng = np.random.default_rng(2)
        images = rng.integers(0, 256, (40, 12, 9, 3), dtype=np.uint8)
        labels = rng.integers(0, 7, 40, dtype=np.uint8)
        harness.write_idx(self.path("images"), images.shape, images.tobytes())
        harness.write_idx(self.path("labels"), labels.shape, labels.tobytes())
        for name in ("images", "labels"):
            with open(self.path(name), "rb") as file:
                sources.write(self.path(""), {name + ".gz": gzip.compress(file.read())})
        options = ("--shards", 3, "--range", "5:35", "--shuffle", 3, "--resize", "6x6")
        self.make("idx", "images", "labels", *options)
        self.make("idx", "images.gz", "labels.gz", *options, out="compressed", ranks=2)
        self.assertEqual(self.contents("compressed"), self.contents("made"))
        # Labels outside of the range may be anything.
        one = int(labels[0])
        classes = ",".join("abcdefgh"[: max(one + 1, 2)])
        self.make("idx", "images", "labels", "--range", "0:1", "--classes", classes, out="one")
        self.assertEqual(list(self.read("one")[1]), [one])
        expected = sorted(
            (covering(Image.fromarray(images[i]), 6, 6).tobytes(), labels[i]) for i in range(5, 35)
        )
        made, found, _ = self.read()
        self.assertEqual(sorted((i.tobytes(), l) for i, l in zip(made, found)), expected)


if __name__ == "__main__":
    harness.main(at_once=2)
