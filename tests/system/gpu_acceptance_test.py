"""Tests the GPU acceptance on a machine without GPU.

It says that there is none and exits 0. Its comparison of losses accepts equal losses and names
different ones. A failed section is reported.
"""

import json
import os
import py_compile
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

import harness

SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts")
ACCEPTANCE = os.path.join(SCRIPTS, "gpu", "acceptance.py")
PARITY = os.path.join(SCRIPTS, "gpu", "parity.py")


def call(*words, cwd=None, **more):
    environment = dict(harness.environment(2), PYTHONDONTWRITEBYTECODE="1", **more)
    return subprocess.run(
        list(words),
        cwd=cwd,
        env=environment,
        text=True,
        timeout=harness.PATIENCE,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


class GpuAcceptance(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def acceptance(self, sections, reference, bin_folder=None):
        out = tempfile.mkdtemp(dir=self.folder)
        result = call(
            sys.executable,
            ACCEPTANCE,
            "--bin",
            bin_folder or os.path.dirname(harness.TRIREME),
            "--reference",
            reference,
            "--out",
            out,
            "--device",
            "cpu",
            "--sections",
            sections,
            "--patience",
            "10",
        )
        found = {}
        for name in os.listdir(out):
            if name.endswith(".json"):
                with open(os.path.join(out, name)) as file:
                    found[name[:-5]] = json.load(file)
        return result, found

    def test_scripts_compile(self):
        for name in os.listdir(os.path.join(SCRIPTS, "gpu")):
            if name.endswith(".py"):
                py_compile.compile(
                    os.path.join(SCRIPTS, "gpu", name), cfile=self.path("compiled"), doraise=True
                )

    def test_without_a_gpu_a_stage_says_so(self):
        if os.path.exists("/dev/nvidiactl"):
            self.skipTest("this machine has a GPU")
        stage = self.path("stage")
        os.makedirs(stage + "/scripts/gpu")
        shutil.copy(os.path.join(SCRIPTS, "gpu_acceptance.sh"), stage + "/scripts")
        shutil.copy(os.path.join(SCRIPTS, "gpu", "environment.sh"), stage + "/scripts/gpu")
        open(stage + "/stage.sh", "w").close()
        result = call("bash", stage + "/scripts/gpu_acceptance.sh", cwd=self.folder)
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertIn("no GPU on this machine", result.stdout)

    def test_losses_are_compared(self):
        reference = self.path("reference")
        recorded = call(
            sys.executable,
            PARITY,
            "record",
            reference,
            "--trireme",
            harness.TRIREME,
            "--steps",
            "12",
        )
        self.assertEqual(recorded.returncode, 0, recorded.stdout)
        with open(reference + "/losses.json") as file:
            losses = json.load(file)
        for model, runs in losses.items():
            self.assertNotEqual(
                runs["float32"], runs["other sums"], "%s: no other rounding, so no measure" % model
            )
            self.assertLess(
                runs["float32"][-1],
                0.97 * runs["float32"][0],
                "%s learns nothing: any program's losses would be like it" % model,
            )
        result, found = self.acceptance("parity,ceilings", reference)
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertTrue(found["parity"]["passed"])
        self.assertEqual(len(found["parity"]["runs"]), 4)
        self.assertIsNone(found["ceilings"]["passed"])  # skipped, not passed
        self.assertRegex(result.stdout, r"\| parity \| passed \|")

        for run in ("float32", "other sums"):  # both runs; their difference is the tolerance
            losses["gpt"][run][8] *= 1.0001
        with open(reference + "/losses.json", "w") as file:
            json.dump(losses, file)
        result, found = self.acceptance("parity", reference)
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertRegex(result.stdout, r"gpt float32: step 9 has loss")
        self.assertFalse(found["parity"]["passed"])

    def test_gradients_are_compared(self):
        result, found = self.acceptance("gradients", self.folder)
        self.assertEqual(result.returncode, 0, result.stdout)
        runs = found["gradients"]["gradients"]
        self.assertEqual(
            [(run["model"], run["run"]) for run in runs],
            [
                ("resnet50", "float32"),
                ("resnet50", "bfloat16"),
                ("gpt", "float32"),
                ("gpt", "bfloat16"),
                ("gpt", "bfloat16, deterministic"),
            ],
        )
        self.assertEqual([run["tensors"] for run in runs[:2]], [161, 161])
        for run in runs:  # otherwise the second run on the CPU would measure nothing
            self.assertGreater(run["tensors_with_tolerance"], 0.9 * run["tensors"], run)

    def test_a_wrong_gradient_is_named(self):
        sys.path.insert(0, os.path.join(SCRIPTS, "gpu"))
        import gradients

        class Result:
            def __init__(self, loss, **weights):
                self.loss = loss
                self.weights = {
                    name: struct.pack("<4f", *values) for name, values in weights.items()
                }

        start = Result(0, a=(1, 2, 3, 4), b=(1, 1, 1, 1)).weights
        reference = Result(2.0, a=(0, 1, 2, 3), b=(1, 1, 1, 0.5))
        other = Result(2.00001, a=(0.0001, 1, 2, 3), b=(1, 1, 1, 0.50001))
        near = Result(2.0001, a=(0.001, 1, 2, 3), b=(1, 1, 1, 0.5001))
        share, wrong = gradients.compare(start, reference, other, near, "float32")
        self.assertEqual(wrong, [])
        self.assertGreater(share, 0)
        for name, values in (("a", (0, 1, 2, 3.01)), ("b", (1, 1, 1, float("nan")))):
            found = Result(2.0, **{"a": (0, 1, 2, 3), "b": (1, 1, 1, 0.5), name: values})
            _, wrong = gradients.compare(start, reference, other, found, "float32")
            self.assertEqual([line.split(":")[0] for line in wrong], [name])
        found = Result(2.001, a=(0, 1, 2, 3), b=(1, 1, 1, 0.5))
        _, wrong = gradients.compare(start, reference, other, found, "float32")
        self.assertEqual(len(wrong), 1)
        self.assertIn("the loss is 2.001", wrong[0])
        # Block by block in the order of backward.
        for names in (
            [
                "fc.bias",
                "layer4.0.bn1.weight",
                "layer1.10.conv1.weight",
                "layer1.2.bn3.bias",
                "bn1.bias",
            ],
            ["ln_f.bias", "h.10.mlp.c_fc.bias", "h.2.attn.c_attn.weight", "wte.weight"],
        ):
            weights = {name: (1, 2, 3, 4) for name in sorted(names)}
            wrong_weights = {name: (9, 9, 9, 9) for name in weights}
            _, wrong = gradients.compare(
                Result(0, **{name: (2, 2, 2, 2) for name in weights}).weights,
                Result(2.0, **weights),
                Result(2.0, **weights),
                Result(2.0, **wrong_weights),
                "float32",
            )
            self.assertEqual([line.split(":")[0] for line in wrong], names)
        fused, plain = gradients.FUSED, gradients.PLAIN
        for failures, blames_fusions in (
            ({fused: ["b", "a"], plain: []}, True),
            ({fused: ["b", "a"], plain: ["b"]}, False),
            ({fused: ["b", "a"]}, False),  # the CPU has no plain run
        ):
            lines = gradients.explain("gpt", failures)
            self.assertEqual("without fusions all agrees" in lines[0], blames_fusions, lines)
            self.assertEqual(len(lines) - blames_fusions, sum(map(len, failures.values())))
        self.assertEqual(gradients.explain("gpt", {fused: [], plain: []}), [])

    def test_a_missing_library_is_named(self):
        sys.path.insert(0, os.path.join(SCRIPTS, "gpu"))
        import acceptance

        found = acceptance.missing_libraries(
            {"libc.so.6": "everything", "libnowhere.so.7": "nothing"}, [self.folder]
        )
        self.assertEqual(len(found), 1, found)
        self.assertTrue(found[0].startswith("libnowhere.so.7 (nothing): "), found)

    def test_a_program_that_fails_fails_its_section(self):
        programs = self.path("programs")
        os.makedirs(programs)
        for name, text in (
            ("test_ops_good", "exit 0"),
            ("test_ops_bad", "echo what went wrong; exit 1"),
            ("test_ops_skipped", "echo 'skipped: no CUDA device'; exit 77"),
        ):
            with open(os.path.join(programs, name), "w") as file:
                file.write("#!/bin/sh\n%s\n" % text)
            os.chmod(os.path.join(programs, name), 0o755)
        result, found = self.acceptance("tests", self.folder, programs)
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertEqual(found["tests"]["programs"]["test_ops_good"]["verdict"], "passed")
        self.assertIn("what went wrong", found["tests"]["programs"]["test_ops_bad"]["verdict"])
        # on a machine with a GPU this is a failure
        self.assertIn("skipped", found["tests"]["programs"]["test_ops_skipped"]["verdict"])
        self.assertRegex(result.stdout, r"\| tests \| FAILED \|")

    def test_an_unknown_section_is_refused(self):
        result, _ = self.acceptance("parity,speed", self.folder)
        self.assertEqual(result.returncode, 2, result.stdout)
        self.assertIn("unknown section speed", result.stdout)


if __name__ == "__main__":
    unittest.main()
