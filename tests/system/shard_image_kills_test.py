# SPDX-License-Identifier: Apache-2.0
"""Tests `trireme shard` for images that is killed: while it writes shards, and while it moves them
into the folder of the dataset."""

import glob
import os
import random
import time

import harness

try:
    from PIL import Image

    import image_sources as sources
except ImportError as error:
    harness.skip("%s (scripts/install_deps.sh tests)" % error)

# Each shard is flushed to the disk, so a command of so many can be killed in time.
SHARDS = 120


class Kills(sources.Case):
    def test_a_killed_command_goes_on_with_the_same_bytes(self):
        files = {}
        for i in range(SHARDS):
            image = Image.fromarray(sources.photograph(24, 24, i))
            files["%d/%03d.jpg" % (i % 3, i)] = sources.encoded(image)
        for i in (17, 66):
            files["%d/%03d.jpg" % (i % 3, i)] = b"no image"
        sources.write(self.path("photos"), files)
        sources.tar(self.path("photos.tar.gz"), sorted(files.items()), "w:gz")
        rng = random.Random(5)
        for source in (("folder", "photos"), ("tar", "photos.tar.gz")):
            options = source + ("--shards", SHARDS, "--on-error", "skip", "--shuffle", 1)
            self.make(*options, "--overwrite", out="whole")
            kept = 0
            sealed = self.path("made", ".making-*", "shard_*.h5")
            for attempt in range(5):
                process = harness.start(
                    "shard", *map(str, options), "--out", "made", cwd=self.folder
                )
                if attempt == 0:
                    harness.wait_for(
                        lambda: len(glob.glob(sealed)) > 2 or process.poll() is not None,
                        "the first shards",
                    )
                else:
                    time.sleep(rng.uniform(0.05, 0.6))
                harness.kill(process)
                text = self.make(*options, "--overwrite", ranks=rng.choice((1, 2)))
                kept += "kept from the same command" in text
                self.assertEqual(self.contents("made"), self.contents("whole"))
                for name in os.listdir(self.path("made")):
                    os.remove(self.path("made", name))
            self.assertGreater(kept, 0)


class Publishing(sources.Case):
    """Kills between the renames that move the shards into the folder."""

    def setUp(self):
        super().setUp()
        images = [Image.fromarray(sources.photograph(8, 8, i)) for i in range(SHARDS)]
        files = {"a/%03d.png" % i: sources.encoded(image, "PNG") for i, image in enumerate(images)}
        sources.write(self.path("photos"), files)
        self.options = ("folder", "photos", "--shards", SHARDS)

    def interrupted(self, moved):
        """Leaves a dataset as a command does that is killed after it has moved some shards."""
        command = ("shard", *map(str, self.options), "--out", "made", "--overwrite")
        process = harness.start(*command, cwd=self.folder)
        sealed = self.path("made", ".making-*", "shard_*.h5")
        harness.wait_for(
            lambda: len(glob.glob(sealed)) > moved or process.poll() is not None, "sealed shards"
        )
        self.assertIsNone(process.poll(), "it ended before it could be killed")
        harness.kill(process)
        staging = glob.glob(self.path("made", ".making-*"))[0]
        sources.write(staging, {"publishing": b""})
        for path in sorted(glob.glob(sealed))[:moved]:
            os.rename(path, self.path("made", os.path.basename(path)))

    def test_nobody_takes_a_part_for_the_whole(self):
        self.make(*self.options, out="whole")
        self.interrupted(3)
        for command in ("inspect", "verify"):
            result = harness.run(command, "made", cwd=self.folder)
            self.assertEqual(result.returncode, 2, result.text)
            self.assertIn("made: is not complete", result.text)
        text = self.make("folder", "photos", "--shards", 7, expect=2)
        self.assertIn("was killed while it did; wait for it, start that command again", text)
        self.make(*self.options)
        self.assertEqual(self.contents("made"), self.contents("whole"))
        # Another command may replace it on demand.
        self.interrupted(2)
        self.make("folder", "photos", "--shards", 7, "--overwrite")
        self.assertEqual(len(self.contents("made")), 7)


if __name__ == "__main__":
    harness.main(at_once=2)
