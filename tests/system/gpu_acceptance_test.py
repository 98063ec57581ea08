# SPDX-License-Identifier: Apache-2.0
"""Tests the GPU acceptance (scripts/gpu_session.sh) on a machine without GPU.

Its comparisons accept equal numbers and name different ones. A run that fails does not end its
section. gpu_results_test.py tests how its results are kept.
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
from gpu_acceptance_case import GPU, SCRIPTS, AcceptanceCase, call, read_results

import acceptance  # noqa: E402 (found by gpu_acceptance_case)
import checks
import gradients
import kernel_profile
import measured_machine
import networks
import runs
import variants

# What ceilings.py measures, in round numbers.
MEASURED = {
    "device": "NVIDIA H100 80GB HBM3",
    "torch": "2.11.0",
    "cuda": "13.0",
    "multiprocessors": 132,
    "memory_bytes": 80_000_000_000,
    "l2_bytes": 50_000_000,
    "cores": 16,
    "host_bytes": 128_000_000_000,
    "copy_gb_per_s": 3000.0,
    "upload_gb_per_s": 50.0,
    "matmul_bfloat16_tflops": 800.0,
    "matmul_float16_tflops": 800.0,
    "matmul_tfloat32_tflops": 400.0,
    "matmul_float32_tflops": 50.0,
    "launch_seconds": 2e-6,
    "grid": {"m": [1024, 8192], "n": [768], "k": [768, 3072]},
    "grid_tflops": [100.0, 200.0, 300.0, 400.0],
    "convolution_tflops": [[300.0, 200.0], [400.0, 300.0]],
    "attention": {"m": [512, 1024], "k": [64, 128]},
    "attention_tflops": [[100.0, 50.0], [200.0, 100.0], [150.0, 60.0], [250.0, 120.0]],
}


class GpuAcceptance(AcceptanceCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        recorded = call(
            *(sys.executable, os.path.join(GPU, "parity.py"), cls.reference),
            *("--trireme", harness.TRIREME, "--steps", "12"),
        )
        if recorded.returncode != 0:
            raise RuntimeError(recorded.stdout)

    def test_scripts_compile(self):
        for name in os.listdir(GPU):
            if name.endswith(".py"):
                path = os.path.join(GPU, name)
                py_compile.compile(path, cfile=self.path("compiled"), doraise=True)

    def test_a_part_takes_less_than_ten_minutes(self):
        everything = []
        for sections in acceptance.PARTS.values():
            everything += sections
            limits = sum(acceptance.SECTIONS[name].limit for name in sections)
            self.assertLessEqual(limits, acceptance.PART_SECONDS)
        self.assertEqual(everything, list(acceptance.SECTIONS))
        session = call("bash", os.path.join(SCRIPTS, "gpu_session.sh"), "--help")
        self.assertEqual(session.returncode, 0)
        for number, sections in acceptance.PARTS.items():
            self.assertRegex(session.stdout, r" %d  %s " % (number, sections[0]))
            for name in sections:
                self.assertRegex(session.stdout, r"(?m)^ +\d? +%s " % name)

    def test_a_section_starts_only_if_its_limit_fits(self):
        programs = self.programs(test_ops_quick="exit 0")
        options = {"bin_folder": programs, "patience": "1"}
        limit = acceptance.SECTIONS["tests"].limit
        result, found = self.acceptance("tests", "--seconds", str(limit + 5), **options)
        self.assertTrue(found["tests"]["passed"], result.stdout)
        result, found = self.acceptance("tests", "--seconds", str(limit - 1), **options)
        self.assertIsNone(found["tests"]["passed"])
        self.assertIn("not run: no time left", found["tests"]["summary"])
        self.assertEqual(result.returncode, 0)

    def test_a_missing_library_ends_the_session(self):
        result, found = self.acceptance("libraries,parity", "--device", "cuda")
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertTrue(found["libraries"]["failed"])
        self.assertEqual(found["parity"]["summary"], "not run: libraries are missing")
        missing = checks.missing_libraries(
            {"libc.so.6": "everything", "libnowhere.so.7": "nothing"}, [self.folder]
        )
        self.assertEqual(len(missing), 1, missing)
        self.assertTrue(missing[0].startswith("libnowhere.so.7 (nothing): "), missing)
        # The file that is there says why it cannot be loaded, not the folder without it.
        folders = [tempfile.mkdtemp(dir=self.folder) for _ in range(3)]
        with open(folders[1] + "/libnowhere.so.7", "w") as file:
            file.write("no library")
        missing = checks.missing_libraries({"libnowhere.so.7": "nothing"}, folders)
        self.assertIn(folders[1], missing[0])

    def test_losses_are_compared(self):
        with open(self.reference + "/losses.json") as file:
            losses = json.load(file)
        for model, recorded in losses.items():
            self.assertNotEqual(
                recorded["float32"], recorded["other sums"], model + ": no other rounding"
            )
            self.assertLess(
                recorded["float32"][-1],
                0.97 * recorded["float32"][0],
                "%s learns nothing: any program's losses would be like it" % model,
            )
        result, found = self.acceptance("parity,ceilings")
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertTrue(found["parity"]["passed"])
        self.assertEqual(len(found["parity"]["runs"]), 4)
        self.assertIsNone(found["ceilings"]["passed"])  # left out, not passed
        self.assertRegex(result.stdout, r"\| parity \| passed \|")
        for run in ("resnet-float32", "gpt-bfloat16"):
            self.assertIn('"loss"', found["logs/parity/%s.metrics.jsonl" % run])
            self.assertIn("logs/parity/%s.log" % run, found)

        changed = self.path("changed")
        shutil.copytree(self.reference, changed)
        for run in ("float32", "other sums"):  # both runs; their difference is the tolerance
            losses["gpt"][run][8] *= 1.0001
        with open(changed + "/losses.json", "w") as file:
            json.dump(losses, file)
        result, found = self.acceptance("parity", reference=changed)
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertEqual(list(found["parity"]["failed"]), ["gpt float32"])
        self.assertIn("step 9 has loss", found["parity"]["failed"]["gpt float32"])

    def test_a_crash_does_not_end_its_section(self):
        crash = 'case "$*" in *resnet-bfloat16*) echo it crashed here; exit 139 ;; esac\n'
        programs = self.programs(trireme=crash + 'exec "%s" "$@"' % harness.TRIREME)
        result, found = self.acceptance("parity", bin_folder=programs)
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertEqual(list(found["parity"]["failed"]), ["resnet bfloat16"])
        self.assertIn("it crashed here", found["parity"]["failed"]["resnet bfloat16"])
        self.assertEqual(len(found["parity"]["runs"]), 3)
        with open(self.out + "/summary.md") as file:
            self.assertRegex(file.read(), r"(?s)parity \| FAILED.*it crashed here")
        # Later, on another machine: only this run, with its last lines.
        earlier = self.out + "/results.tar.gz"
        programs = self.programs(
            trireme="test $CUDA_LAUNCH_BLOCKING = 1 || exit 3\n" + crash + "exit 4"
        )
        result, found = self.acceptance("again", "--earlier", earlier, bin_folder=programs)
        self.assertTrue(found["again"]["passed"], result.stdout)
        self.assertEqual(list(found["again"]["again"]), ["parity"])
        (run,) = found["again"]["again"]["parity"].values()
        self.assertIn("exit status 139", run["verdict"])
        self.assertEqual(run["last_lines"], ["it crashed here"])
        self.assertEqual(len(found["parity"]["runs"]), 3)  # the earlier results are kept

    def test_a_run_that_hangs_leaves_time_for_the_others(self):
        hang = 'case "$*" in *resnet-float32*) exec sleep 1000 ;; esac\n'
        programs = self.programs(trireme=hang + 'exec "%s" "$@"' % harness.TRIREME)
        # The section gets 120 s, half of them for one run: beside other work the others take 20 s.
        patience = str(120 / acceptance.SECTIONS["parity"].limit)
        result, found = self.acceptance("parity", bin_folder=programs, patience=patience)
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertEqual(list(found["parity"]["failed"]), ["resnet float32"])
        self.assertRegex(found["parity"]["failed"]["resnet float32"], "not done within (59|60) s")
        self.assertEqual(len(found["parity"]["runs"]), 3)

    def test_variants_are_compared_beside_the_first(self):
        code = (
            "import sys; sys.path.insert(0, %r); import variants\n"
            "other = variants.Variant('other', ('run.seed=2',), variants.MODELS, False)\n"
            "variants.VARIANTS.append(other)\n"
            "import acceptance; sys.exit(acceptance.main())" % GPU
        )
        words = self.words("parity")
        result = call(sys.executable, "-c", code, *words[2:])
        found = read_results(self.out)["parity"]
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertEqual(len(found["runs"]), 8)
        self.assertEqual(found["runs"][1]["sets"], ["run.seed=2"])
        self.assertEqual(
            sorted(found["failed"]),
            ["gpt bfloat16, other", "gpt float32, other", "resnet bfloat16, other"]
            + ["resnet float32, other"],
        )

    def test_the_forms_of_a_gpu(self):
        def names(model, device):
            return [name for name, _ in variants.of(model, device)]

        self.assertEqual(names("gpt2", "cuda"), ["", "fused softmax"])
        self.assertEqual(names("resnet50", "cuda"), ["", "joined norms"])
        self.assertEqual(names("resnet50", "cpu"), [""])

    def test_gradients_are_compared(self):
        result, found = self.acceptance("gradients")
        self.assertEqual(result.returncode, 0, result.stdout)
        steps = found["gradients"]["gradients"]
        self.assertEqual(
            [(step["model"], step["run"]) for step in steps],
            [
                ("resnet50", "float32"),
                ("resnet50", "bfloat16"),
                ("gpt", "float32"),
                ("gpt", "bfloat16"),
                ("gpt", "bfloat16, deterministic"),
            ],
        )
        self.assertEqual([step["tensors"] for step in steps[:2]], [161, 161])
        for step in steps:  # otherwise the second run on the CPU would measure nothing
            self.assertGreater(step["tensors_with_tolerance"], 0.9 * step["tensors"], step)

    def test_a_wrong_gradient_is_named(self):
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
            ({fused: [], plain: []}, False),
        ):
            named = {("gpt", run): lines for run, lines in failures.items()}
            line = gradients.explain("gpt", "", named)
            self.assertEqual("without fusions all agrees" in (line or ""), blames_fusions, line)

    def test_a_program_that_fails_fails_its_section(self):
        programs = self.programs(
            test_ops_good="exit 0",
            test_ops_bad="echo what went wrong; exit 1",
            test_ops_skipped="echo 'skipped: no CUDA device'; exit 77",
            test_ops_linear="test $TRIREME_TEST_FUSIONS = off",
        )
        result, found = self.acceptance("tests", bin_folder=programs)
        self.assertEqual(result.returncode, 1, result.stdout)
        tests = found["tests"]
        self.assertEqual(tests["programs"]["test_ops_good"]["verdict"], "passed")
        self.assertEqual(tests["programs"]["test_ops_linear without fusions"]["verdict"], "passed")
        # On a machine with a GPU a skipped test is a failure.
        self.assertEqual(
            sorted(tests["failed"]), ["test_ops_bad", "test_ops_linear", "test_ops_skipped"]
        )
        self.assertIn("what went wrong", tests["failed"]["test_ops_bad"])
        self.assertIn("no CUDA device", tests["failed"]["test_ops_skipped"])
        self.assertRegex(result.stdout, r"\| tests \| FAILED \|")

    def test_rates_are_timed_after_clocks_settled(self):
        # Ten samples a second in pieces of ten: a second each. The first one chooses algorithms.
        rates, seconds = networks.settled([0.5] + [10.0] * 20, 10)
        self.assertEqual(len(rates), 20 - networks.SETTLE_SECONDS)
        self.assertEqual(seconds, 20 - networks.SETTLE_SECONDS)
        self.assertEqual(networks.settled([10.0] * 3, 10)[0], [])

    def test_a_machine_file_can_be_planned_with(self):
        ops = [
            {"op": name, "rows": 1, "columns": 2, "gb_per_s": 2000.0}
            for name in ("copy", "batch_norm_apply", "batch_norm_backward", "row_norm_forward")
            + ("gelu_backward", "max_pool_forward", "update_adamw", "row_square_sums")
        ]
        for some in (None, ops):
            path = self.path("machine.toml")
            with open(path, "w") as file:
                file.write(measured_machine.machine_file(MEASURED, some, "2026-11-26"))
            with open(self.path("plan.toml"), "w") as file:
                file.write(
                    '[run]\nname = "plan"\nstop = "1 step"\n'
                    + networks.GPT2 % {"data": "data", "batch": 32}
                )
            result = call(
                *(harness.TRIREME, "plan", self.path("plan.toml"), "--machine", path),
                *("--assume", "tokens:10000000,50304", "--ranks", "1"),
            )
            self.assertEqual(result.returncode, 0, result.stdout)
            self.assertIn("nvidia-h100-80gb-hbm3", result.stdout)

    def test_kernel_times_are_read(self):
        header = '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
        row = '"%d","%s","gpu__time_duration.sum","%s","%s"\n'
        text = "==PROF== Connected\n" + header
        text += row % (0, "a", "us", "2.5") + row % (1, "b", "nsecond", "1,200")
        text += row % (2, "b", "ns", "4,000")
        times = kernel_profile.kernel_times(text)
        self.assertEqual([time[:2] for time in times], [["b", 2], ["a", 1]])
        self.assertAlmostEqual(times[0][2], 5.2e-6)
        with self.assertRaisesRegex(runs.Failed, "no permission"):
            kernel_profile.kernel_times("==ERROR== no permission")

    def test_the_network_device_lo_is_brought_up(self):
        code = "import sys; sys.path.insert(0, %r); import loopback; print(loopback.bring_up())"
        alone = ["unshare", "--net"]
        if subprocess.run([*alone, "true"], stderr=subprocess.PIPE).returncode != 0:
            self.skipTest("this user may not make a network namespace")
        result = call(*alone, sys.executable, "-c", code % GPU)
        self.assertIn("lo: was down, brought up", result.stdout)
        self.assertIn("lo: up", call(sys.executable, "-c", code % GPU).stdout)


if __name__ == "__main__":
    unittest.main()
