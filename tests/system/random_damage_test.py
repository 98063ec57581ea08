# SPDX-License-Identifier: Apache-2.0
"""Tests files without seals that are damaged at random.

`random_damage_test.py --damages N` tries more damages than the few of the test.
"""

import os
import random
import sys
import unittest

from hostile_files import (
    HostileCase,
    MAX_BYTES,
    bytes_of,
    checkpoint,
    images,
    replace,
    run_measured,
    tokens,
)

import numpy as np  # after hostile_files, which skips the test if h5py is missing

DAMAGES = 96


class RandomDamage(HostileCase):
    def test_random_damage_never_ends_the_program(self):
        """Damages files without seals at random.

        A change may be detected or may look like a valid value. The program must not crash, and it
        prints one line for each file.
        """

        def chunked(path):
            file = images(path)
            data = file["images"][...]
            replace(
                file, "images", data=data, chunks=(7, 12, 12, 1), compression="gzip", shuffle=True
            )
            return file

        def many(path):
            file = checkpoint(path, libver="latest")
            for i in range(40):
                file["state"].attrs["key%d" % i] = "value %d" % i
                file["model/layer%d.weight" % i] = np.zeros(8, np.float32)
            return file

        originals = [
            (bytes_of(maker), kind)
            for maker, kind in (
                (checkpoint, "c"),
                (images, "i"),
                (tokens, "t"),
                (chunked, "z"),
                (many, "m"),
            )
        ]
        rng = random.Random(11)
        folder = self.path("damaged")
        os.mkdir(folder)
        for i in range(DAMAGES):
            content, kind = originals[i % len(originals)]
            content = bytearray(content)
            for _ in range(rng.choice((1, 1, 2, 8, 64))):
                # Most bytes of a file are values, but HDF5's own structures are the dangerous part.
                # Half of the changes hit bytes that are not zero.
                place = rng.randrange(len(content))
                while rng.random() < 0.5 and content[place] == 0:
                    place = rng.randrange(len(content))
                content[place] = rng.choice(
                    (0, 255, rng.randrange(256), content[place] ^ (1 << rng.randrange(8)))
                )
            if rng.random() < 0.1:
                del content[rng.randrange(len(content)) :]
            with open("%s/%s%05d.h5" % (folder, kind, i), "wb") as file:
                file.write(content)
        code, out, text, most, _ = run_measured("verify", folder, cwd=self.folder)
        self.assertEqual(code, 2, text[-2000:])
        said = out.splitlines() + text.splitlines()
        self.assertEqual(
            sorted(line.split(": ")[0] for line in said),
            sorted(os.path.join(folder, name) for name in os.listdir(folder)),
            text[-2000:],
        )
        self.assertLess(most, MAX_BYTES)
        print(
            "%d damages: %d found; HDF5 crashed or hung on %d"
            % (
                DAMAGES,
                len(text.splitlines()),
                text.count("crashes on this file") + text.count("does not finish reading"),
            ),
            flush=True,
        )


if __name__ == "__main__":
    if "--damages" in sys.argv:
        at = sys.argv.index("--damages")
        DAMAGES = int(sys.argv[at + 1])
        del sys.argv[at : at + 2]
    unittest.main()
