# SPDX-License-Identifier: Apache-2.0
"""Tests `trireme shard folder|cifar|idx|npy`: shards hold the images of the source, whatever its
form, and wrong input costs little."""

import csv
import gzip
import os

import harness

try:
    import numpy as np
    from PIL import Image

    import image_sources as sources
except ImportError as error:
    harness.skip("%s (scripts/install_deps.sh tests)" % error)


def covering(image, height, width):
    """Returns what --resize HEIGHTxWIDTH makes of a Pillow image."""
    scaled = (image.width * height // image.height, height)
    if scaled[0] < width:
        scaled = (width, max(image.height * width // image.width, height))
    left, top = round((scaled[0] - width) / 2), round((scaled[1] - height) / 2)
    resized = image.resize(scaled, Image.Resampling.BILINEAR)
    return np.asarray(resized.crop((left, top, left + width, top + height)))


class Folders(sources.Case):
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
                b"ImageId,PredictionString\n3,dog 1 2 3 4 \n2,cat 5 6 7 8 cat 1 2 3 4\n1,ant\n"
                b"0,cat 7 8 9 9\n",
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

    def test_quotes_in_a_file_of_labels(self):
        sources.write(self.path("flat"), {"%d.png" % i: self.forms["color.png"] for i in range(3)})
        sources.write(self.path("flat"), {'a, "b".png': self.forms["color.png"]})
        last = '"a, ""b"".png",'
        for lines, expected in (
            (
                '0.png,"cat, big"\n1.png,"cat, small"\n2.png,dog\n%s"the ""cat"""\n' % last,
                ["cat, big", "cat, small", "dog", 'the "cat"'],
            ),
            ('"name","label"\n"0.png","0"\n"1.png", "1"\n"2.png" ,2\n%s0\n' % last, [0, 1, 2, 0]),
            (
                '0.png "cat, big"\n1.png "cat, small"\n2.png\t"a\tb"\n%s"x"\n' % last,
                "has control characters",
            ),
            (
                '0.png "cat, big"\n1.png\tcat, "small"\n2.png\t"red fox"\n%s"x y"' % last,
                ["cat, big", 'cat, "small"', "red fox", "x y"],
            ),
            ('0.png,"cat\n1.png,dog\n', ['labels:1: the quote before cat is not closed']),
            ('0.png,x\n1.png,"a"b\n', ['labels:2: "a"b has text behind a closing quote']),
            ("0.png,red fox\n1.png,red panda\n", ['labels:1: the label "red fox" has several']),
            ("0.png,grade 0\n1.png,grade 4\n", ['labels:1: the label "grade 0" has several']),
            ("file,class name\n0.png,a\n1.png,b\n2.png,c\n%sd\n" % last, ["a", "b", "c", "d"]),
        ):
            with self.subTest(lines):
                sources.write(self.path(""), {"labels": lines.encode()})
                options = ("folder", "flat", "--labels", "labels", "--overwrite")
                if lines.count("\n") < 3 or isinstance(expected, str):
                    self.refuse(*options, saying=expected)
                    continue
                text = self.make(*options)
                self.assertNotIn("more than two columns", text)
                _, labels, names = self.read()
                self.assertEqual([names[l] if names else l for l in labels], expected)

    def test_columns_and_numbers_of_a_file_of_labels(self):
        sources.write(self.path("flat"), {"%d.png" % i: self.forms["color.png"] for i in range(3)})
        options = ("folder", "flat", "--labels", "labels", "--overwrite")
        for lines, saying in (
            (
                "i,MEL,NV,BCC\n0,0.0,1.0,0.0\n1,1.0,0.0,0.0\n2,0.0,0.0,1.0\n",
                ["MEL, NV, BCC hold 1"],
            ),
            ("0\t0\t1\n1\t1\t0\n2\t1\t0\n", ["each column is a class"]),
            ("0,10.0\n1,2.0\n2,1.0\n", ['labels:1: label "10.0" is neither the number']),
            ("0,10\n1,nan\n2,2\n", ['labels:2: label "nan" is neither']),
            ("0,10\n1,+1e999\n2,2\n", ['labels:2: label "+1e999" is neither']),
            ("0,10\n1,NA\n2,2\n", ["labels:1: label 10 is a number", 'labels:2 has the name "NA"']),
            (
                "0,dog\n1,0\n2,cat\n",
                ["labels:2: label 0 is a number", 'labels:1 has the name "dog"'],
            ),
            ("0,10\n1,\n2,2\n", ['labels:2: "1," has no label']),
        ):
            with self.subTest(lines):
                sources.write(self.path(""), {"labels": lines.encode()})
                self.refuse(*options, saying=saying)
        for lines, saying in (
            (
                "i,kind,place\n0,a,x\n1,b,y\n2,a,z\n",
                'its lines have more than two columns; the class ' 'is the second one, "kind"',
            ),
            ("0 1 5 6\n1 0\n2 1\n", "1 line has more than two columns"),
        ):
            sources.write(self.path(""), {"labels": lines.encode()})
            self.assertIn("labels: " + saying, self.make(*options))
        sources.write(self.path(""), {"labels": b"0,10.0\n1,2.0\n2,dog\n"})
        self.make(*options, "--classes", "2.0,10.0,dog")
        self.assertEqual(list(self.read()[1]), [1, 0, 2])

    def test_numbers_that_are_places_and_names_of_classes(self):
        names = [str(i) for i in range(12)]
        png = self.forms["color.png"]
        sources.write(self.path("numbers"), {name + "/a.png": png for name in names})
        self.make("folder", "numbers", out="sorted")
        self.assertEqual(self.read("sorted")[2], sorted(names))
        members = []
        for i in range(12):
            members += [("%02d.png" % i, png), ("%02d.cls" % i, b"%d" % i)]
        sources.tar(self.path("a.tar"), members)
        harness.write_idx(self.path("pixels"), (12, 4, 4), bytes(12 * 16))
        harness.write_idx(self.path("indices"), (12,), bytes(range(12)))
        sources.write(self.path("flat"), {"%02d.png" % i: png for i in range(12)})
        table = "".join("%02d.png,%d\n" % (i, i) for i in range(12))
        sources.write(self.path(""), {"table": table.encode()})
        saying = (
            'is the number 2, which is the class "10" by its place in --classes, but the class "2"'
        )
        for source in (
            ("tar", "a.tar"),
            ("idx", "pixels", "indices"),
            ("folder", "flat", "--labels", "table"),
        ):
            self.refuse(*source, "--classes", "sorted", saying=saying)
            self.make(*source, "--classes", ",".join(names), "--overwrite")
            self.assertEqual(list(self.read()[1]), list(range(12)))
            self.refuse(*source, "--classes", ",".join(names[1:]), saying="number")
        # The number 0 is no name of these classes, which are not all numbers.
        words = ["class %d" % i for i in range(11)] + ["3"]
        self.make("tar", "a.tar", "--classes", ",".join(words), "--overwrite")
        self.assertEqual(list(self.read()[1]), list(range(12)))
        # The number 11 is no place of the classes 1 to 11, so the labels are names.
        source = ("idx", "pixels", "indices", "--range", "1:12")
        self.make(*source, "--classes", ",".join(names[:0:-1]), "--overwrite")
        self.assertEqual(list(self.read()[1]), list(range(10, -1, -1)))
        table = "".join("%02d.png,%d\n" % (i, i + 1) for i in range(12))
        sources.write(self.path(""), {"table": table.encode()})
        self.make(
            "folder",
            "flat",
            "--labels",
            "table",
            "--classes",
            ",".join(sorted(names[1:]) + ["12"]),
            "--overwrite",
        )
        _, labels, classes = self.read()
        self.assertEqual([classes[l] for l in labels], names[1:] + ["12"])

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


class BadImages(sources.Case):
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
                self.assertLess(seconds, sources.BIG_SECONDS)
                self.assertLess(peak, sources.BIG_BYTES)

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


class Records(sources.Case):
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


class Npy(sources.Case):
    """Arrays that numpy.save has written."""

    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(3)
        self.images = rng.integers(0, 256, (30, 8, 9, 3)).astype(np.uint8)
        self.labels = rng.integers(0, 4, 30)
        self.save()

    def save(self, images=None, labels=None):
        np.save(self.path("x.npy"), self.images if images is None else images)
        np.save(self.path("y.npy"), self.labels if labels is None else labels)

    def test_arrays(self):
        large = np.moveaxis(np.repeat(self.images, 2, 1), -1, 1)
        for images, expected in (
            (self.images, self.images),
            (self.images[..., 0], self.images[..., :1]),
            (self.images[:, :, :, :1], self.images[:, :, :, :1]),
            # The order of PyTorch.
            (np.ascontiguousarray(large), np.moveaxis(large, 1, -1)),
        ):
            for kind in ("<i8", "<i4", "u1", "<u2"):
                self.save(images, self.labels.astype(kind))
                self.make("npy", "x.npy", "y.npy", "--overwrite")
                made, labels, _ = self.read()
                np.testing.assert_array_equal(made, expected)
                np.testing.assert_array_equal(labels, self.labels)
        self.save(labels=self.labels[:, None])
        options = ("--range", "5:25", "--classes", "a,b,c,d", "--resize", "4x4", "--overwrite")
        self.make("npy", "x.npy", "y.npy", *options)
        made, labels, classes = self.read()
        self.assertEqual((made.shape, classes), ((20, 4, 4, 3), ["a", "b", "c", "d"]))
        np.testing.assert_array_equal(labels, self.labels[5:25])

    def test_refused_arrays(self):
        for images, labels, saying in (
            (self.images.astype("f4"), None, "takes images of numpy.uint8"),
            (self.images[0, 0], None, "its shape is [9, 3]; images are [samples, height"),
            (self.images[:0], self.labels[:0], "its shape is [0, 8, 9, 3]"),
            (self.images.view([("r", "u1"), ("g", "u1"), ("b", "u1")]), None, "x.npy: has type"),
            (np.asfortranarray(self.images), None, "in the order of Fortran"),
            (None, self.labels.astype("f8"), "labels are little-endian integers"),
            (None, self.labels.astype(">i4"), "has type '>i4'"),
            (None, self.labels - 1, "y.npy: label -1 of sample"),
            (None, self.labels[:29], "labels are one number for each of the 30 images of x.npy"),
            (None, np.eye(4)[self.labels].astype("u1"), "its shape is [30, 4]; labels are one"),
        ):
            self.save(images, labels)
            self.refuse("npy", "x.npy", "y.npy", saying=saying)
        self.save()
        self.refuse("npy", "x.npy", saying="two are needed: IMAGES LABELS")
        with open(self.path("x.npy"), "r+b") as file:
            file.truncate(700)
        self.refuse("npy", "x.npy", "y.npy", saying="its header says 6480 elements of 1 bytes")
        np.savez(self.path("both.npz"), x=self.images, y=self.labels)
        self.refuse("npy", "both.npz", "y.npy", saying="an .npz archive of NumPy")


if __name__ == "__main__":
    harness.main(at_once=2)
