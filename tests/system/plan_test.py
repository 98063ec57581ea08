# SPDX-License-Identifier: Apache-2.0
"""Tests `trireme plan`: the prediction of a deck on a machine."""

import json
import os
import pathlib
import resource
import shutil
import subprocess
import time
import unittest
import xml.etree.ElementTree

import harness


def cpu_machine():
    """Returns a machine file of a CPU with figures that are easy to remember."""
    origin = 'source = "made up for a test"\ndate = "2026-11"\n'
    tables = {
        "device": 'kind = "cpu"\nunits = 4\nthreads = 1\n',
        "peak": "float32 = 1e11\n",
        "memory": "bytes = 8_000_000_000\nbytes_per_s = 1e10\n",
        "overhead": "launch_seconds = 1e-6\n",
        "node": "devices = 1\ncores = 4\n",
        "links.node": "latency_seconds = 1e-6\nbytes_per_s = 1e9\n",
        "efficiency.all.memory_bound": "bandwidth = 0.8\n",
    }
    for kind in ("product", "convolution", "attention"):
        for direction in ("forward", "backward"):
            tables["efficiency.all.%s_%s" % (kind, direction)] = "compute = 0.5\n"
    text = '[machine]\nname = "made_up"\ntested = false\n'
    return text + "".join("[%s]\n%s%s" % (name, origin, keys) for name, keys in tables.items())


CPU_MACHINE = cpu_machine()
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
INPUTS = os.path.join(ROOT, "inputs")
# A model of 400 billion weights at 16,384 ranks.
LARGE = {
    "model.layers": 126,
    "model.width": 16384,
    "model.heads": 128,
    "model.context": 4096,
    "batch.global": 2048,
    "batch.micro": 1,
    "parallel.tensor": 8,
    "parallel.pipeline": 16,
}


# The pictures of docs/guides/plan.md: file, option, and the other arguments.
LLAMA = ("llama_7b_3d.toml", "--machine", "h100", "--assume", "tokens:1000000000000,32000")
FEW_MICRO_BATCHES = (
    *("--ranks", "64", "--set", "batch.global=32", "--set", "parallel.pipeline_chunks=1"),
    *("--set", "parallel.pipeline_schedule=1f1b"),
)
PICTURES = (
    ("timeline", "--timeline", FEW_MICRO_BATCHES),
    ("memory", "--memory-plot", FEW_MICRO_BATCHES),
    ("layouts", "--memory-plot", ("--ranks", "512", "--search")),
)


class Pictures(harness.Case):
    def plan(self, *arguments, expect=0):
        result = harness.run("plan", *arguments, cwd=self.folder)
        self.assertEqual(result.returncode, expect, result.text)
        return result.text

    def test_the_pictures_of_the_guide_are_those_of_the_program(self):
        shutil.copy(os.path.join(INPUTS, "examples", "llama_7b_3d.toml"), self.folder)
        for name, option, arguments in PICTURES:
            text = self.plan(*LLAMA, *arguments, option, "plot.svg")
            self.assertIn("picture    plot.svg: ", text)
            with open(self.path("plot.svg"), encoding="utf-8") as file:
                drawn = file.read()
            xml.etree.ElementTree.fromstring(drawn)
            page = os.path.join(ROOT, "docs", "figures", "plan", name + ".svg")
            if "TRIREME_WRITE_FIGURES" in os.environ:
                os.makedirs(os.path.dirname(page), exist_ok=True)
                with open(page, "w", encoding="utf-8") as file:
                    file.write(drawn)
            with open(page, encoding="utf-8") as file:
                self.assertEqual(file.read(), drawn, name)

    def test_the_bars_of_the_timeline_have_every_micro_batch(self):
        arguments = ("deck.toml", "--machine", "h100", "--ranks", "2")
        arguments += ("--set", "batch.micro=8", "--set", "parallel.pipeline=2")
        self.plan(*arguments, "--timeline", "plot.svg", "--memory-plot", "memory.svg")
        svg = xml.etree.ElementTree.parse(self.path("plot.svg")).getroot()
        texts = [text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")]
        for label in ("stage 0", "stage 1", "messages", "forward", "backward", "waits"):
            self.assertIn(label, texts)
        for micro_batch in range(8):
            self.assertIn(str(micro_batch), texts)

    def test_json_goes_through_links_and_into_devices(self):
        arguments = ("deck.toml", "--machine", "h100", "--ranks", "2")
        os.symlink("real.json", self.path("link.json"))
        self.assertIn(
            "is a link to nothing", self.plan(*arguments, "--json", "link.json", expect=2)
        )
        with open(self.path("real.json"), "w") as file:
            file.write("{}")
        self.plan(*arguments, "--json", "link.json")
        self.assertTrue(os.path.islink(self.path("link.json")))
        self.assertIn("deck", json.loads(pathlib.Path(self.path("real.json")).read_text()))
        self.plan(*arguments, "--json", "/dev/null")
        self.assertFalse(os.path.isfile("/dev/null"))

    def test_the_parts_of_a_memory_bar_add_up(self):
        arguments = ("deck.toml", "--machine", "h100", "--ranks", "2", "--json", "plan.json")
        arguments += ("--set", "batch.global=2560", "--set", "batch.micro=1280")
        arguments += ("--assume", "images:2560,12x12x1,5")
        arguments += ("--set", "parallel.pipeline=2", "--set", "parallel.recompute=all")
        self.plan(*arguments, "--memory-plot", "memory.svg")
        with open(self.path("plan.json")) as file:
            report = json.load(file)
        plans = [place["memory"] for place in report["places"]]
        reserved = report["memory"]["reserved_bytes"]
        self.assertGreater(reserved, 0)
        svg = xml.etree.ElementTree.parse(self.path("memory.svg")).getroot()
        rows = {}
        for part in svg.iter("{http://www.w3.org/2000/svg}rect"):
            if part.get("height") != "12.0":  # the legend
                place = float(part.get("x")), float(part.get("width")), part.get("class")
                rows.setdefault(float(part.get("y")), []).append(place)
        self.assertEqual(len(rows), len(plans))
        # Numbers have one decimal, and a gap of half a pixel separates parts that are next to each
        # other. A part is at least 0.4 pixels wide.
        tolerance = 0.7
        ends = [row[-1][0] + row[-1][1] for row in rows.values()]
        begin = min(row[0][0] for row in rows.values())
        scale = (max(ends) - begin) / (max(plan["total"] for plan in plans) + reserved)
        for row, end, plan in zip(rows.values(), ends, plans):
            total = plan["total"] + reserved
            self.assertAlmostEqual(end - begin, total * scale, delta=tolerance)
            for (x, width, _), (following, _, _) in zip(row, row[1:]):
                self.assertAlmostEqual(x + width, following, delta=tolerance)
            widths = {color: width for _, width, color in row}
            self.assertGreater(plan["recompute"] * scale, 5)
            self.assertAlmostEqual(widths["c4"], plan["recompute"] * scale, delta=1)

    def test_files_on_a_disk_that_is_read_only_are_refused(self):
        arguments = ("deck.toml", "--machine", "h100", "--ranks", "2")
        with harness.SmallDisk(self.path("disk"), 1 << 20, read_only=True):
            for option in ("--timeline", "--memory-plot", "--json", "--sbatch", "--simgrid"):
                text = self.plan(*arguments, option, "disk/file", expect=2)
                self.assertIn("%s disk/file: " % option, text)
                self.assertIn("Read-only file system", text)
                self.assertNotIn("layout", text)  # before the work

    def test_files_that_cannot_be_written_are_refused(self):
        arguments = ("deck.toml", "--machine", "h100", "--ranks", "2")
        for option in ("--timeline", "--memory-plot", "--json", "--sbatch"):
            text = self.plan(*arguments, option, "none/file.svg", expect=2)
            self.assertIn("%s none/file.svg: there is no folder" % option, text)
            self.assertIn("make it, or name a file in another one", text)
        text = self.plan(*arguments, "--timeline", "deck.toml", expect=2)
        self.assertIn("exists and is no SVG file, so it is not replaced", text)
        text = self.plan(*arguments, "--json", ".", expect=2)
        self.assertIn("--json .: is a folder; name a file in it", text)
        before = pathlib.Path(self.path("deck.toml")).read_text()
        for option, form in (("--json", "JSON"), ("--sbatch", "job")):
            text = self.plan(*arguments, option, "deck.toml", expect=2)
            self.assertIn("%s deck.toml: exists and is no %s file" % (option, form), text)
        self.assertEqual(pathlib.Path(self.path("deck.toml")).read_text(), before)
        text = self.plan(*arguments, "--sbatch", "-", expect=2)
        self.assertIn("--sbatch -: is no name of a file", text)
        text = self.plan(*arguments, "--json", "a", "--sbatch", "./a", expect=2)
        self.assertIn("--json and --sbatch name the same file, ./a; name two files", text)
        text = self.plan(*arguments, "--search", "--timeline", "plot.svg", expect=2)
        self.assertIn("--search and --timeline: a timeline is of one layout", text)
        text = self.plan("deck.toml", "--prove", "--memory-plot", "plot.svg", expect=2)
        self.assertIn("a proof has neither times nor bytes", text)
        same = ("--timeline", "plot.svg", "--memory-plot", "plot.svg")
        text = self.plan(*arguments, *same, expect=2)
        self.assertIn("name the same file, plot.svg; name two files", text)


class Plan(harness.Case):
    def plan(self, *arguments, expect=0):
        result = harness.run("plan", *arguments, cwd=self.folder)
        self.assertEqual(result.returncode, expect, result.text)
        return result

    def prediction(self, *arguments):
        return json.loads(self.plan(*arguments, "--json", "-").stdout)

    def test_memory_is_that_of_check(self):
        with open(self.path("cpu.toml"), "w") as file:
            file.write(CPU_MACHINE)
        arguments = ("deck.toml", "--ranks", "4", "--set", "run.device=cpu")
        planned = self.prediction(*arguments, "--machine", "./cpu.toml")
        checked = harness.run("check", *arguments, "--json", cwd=self.folder)
        memory = json.loads(checked.stdout)["memory"]
        self.assertEqual(planned["memory"]["bytes"], memory["bytes"])
        self.assertTrue(planned["memory"]["fits"])
        largest = max(place["memory"]["total"] for place in planned["places"])
        self.assertEqual(largest, memory["bytes"])

    def test_the_parts_of_the_step_add_up(self):
        planned = self.prediction("deck.toml", "--machine", "h100", "--ranks", "4")
        step = planned["step"]
        parts = step["forward_s"] + step["backward_s"] + step["update_s"] + step["idle_s"]
        self.assertAlmostEqual(step["seconds"], parts + sum(step["waits_s"].values()), delta=1e-9)
        self.assertAlmostEqual(planned["rate"]["samples_per_s"] * step["seconds"], 64, delta=1e-6)

    def test_lines_name_what_the_json_has(self):
        planned = self.prediction("deck.toml", "--machine", "h100", "--ranks", "4")
        lines = self.plan("deck.toml", "--machine", "h100", "--ranks", "4", "--ops").stdout
        for name in ("machine", "layout", "memory", "compute", "step", "rate", "checkpoint", "run"):
            self.assertIn("%-11s%s" % (name, planned[name]["text"]), lines)
        for op in planned["places"][0]["ops"]:
            self.assertIn(op["op"], lines)
        self.assertIn("reduce_bucket", lines)

    def test_the_status_of_a_step_costs_little_on_many_ranks(self):
        recipe = os.path.join(INPUTS, "recipes", "resnet50_large_batch.toml")
        images = ("--assume", "images:1281167,256x256x3,1000")
        validation = ("--assume", "validation=images:50000,256x256x3,1000")
        waits = {}
        for ranks in (64, 128, 256, 512, 4096, 3 * 512):
            step = self.prediction(
                *(recipe, "--machine", "h100", "--ranks", str(ranks), *images, *validation),
                *("--set", "batch.global=%d" % (16 * ranks)),
            )["step"]
            waits[ranks] = step["waits_s"]["world"]
            self.assertLess(waits[ranks], 0.05 * step["seconds"], ranks)
        # A message for each doubling of the ranks, between nodes.
        message = waits[128] - waits[64]
        self.assertAlmostEqual(waits[512], waits[64] + 3 * message, delta=1e-9)
        self.assertAlmostEqual(waits[4096], waits[64] + 6 * message, delta=1e-9)
        # Other numbers of ranks go up the tree and down again.
        self.assertLess(waits[3 * 512], 2 * waits[4096])

    def test_400_billion_weights_on_16384_ranks_answer_soon(self):
        self.write_deck(harness.GPT_DECK, "large.toml")
        arguments = ["large.toml", "--ranks", "16384", "--assume", "tokens:1000000000,128000"]
        for key, value in LARGE.items():
            arguments += ["--set", "%s=%s" % (key, value)]
        for command in (["check"], ["plan", "--machine", "h100"]):
            start = time.monotonic()
            result = harness.run(*command, *arguments, cwd=self.folder)
            # 0.4 s and 1 s alone. Lists of all rows took 25 s.
            self.assertLess(time.monotonic() - start, 15)
            self.assertEqual(result.returncode, 0, result.text)

    def test_a_run_is_proved_without_machine(self):
        proved = json.loads(self.plan("deck.toml", "--prove", "--ranks", "4", "--json", "-").stdout)
        row = proved["rows"][0]
        self.assertTrue(row["result"]["free_of_deadlock"])
        self.assertEqual(row["record"]["ranks"], 4)
        self.assertEqual(row["record"]["recorded_ranks"], 2)
        self.assertGreater(row["parts"]["evaluation_rounds"], 0)
        kinds = {kind["group"]: kind for kind in row["groups"]["kinds"]}
        self.assertEqual(kinds["data"]["ranks"], 4)
        self.assertGreater(kinds["data"]["collectives"], 0)
        lines = self.plan("deck.toml", "--prove", "--ranks", "4").stdout
        for name in ("parts", "record", "simulated", "result"):
            self.assertIn("%-11s%s" % (name, row[name]["text"]), lines)
        self.assertTrue(lines.endswith("result     free of deadlock\n"), lines)

    def test_16384_ranks_are_proved_soon(self):
        self.write_deck(harness.GPT_DECK, "large.toml")
        arguments = ["large.toml", "--ranks", "16384", "--prove", "--machine", "h100"]
        arguments += ["--assume", "tokens:1000000000,128000"]
        arguments += ["--assume", "validation=tokens:100000000,128000"]
        for key, value in LARGE.items():
            arguments += ["--set", "%s=%s" % (key, value)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        lines = self.plan(*arguments).stdout
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        # 5 s of one core. The time that passes depends on what else runs.
        self.assertLess(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 30)
        # Kilobytes, of the largest program that this test has run so far: 60 MB alone.
        self.assertLess(after.ru_maxrss, 5e5)
        self.assertIn("256 ranks for all 16384 of the run", lines)
        self.assertIn("result     free of deadlock", lines)

    def test_flops_of_known_models_are_those_of_the_program(self):
        """They are counters of the recorded step, not a formula for a model."""
        deck = os.path.join(INPUTS, "recipes", "resnet50_goyal.toml")
        images = ("--assume", "images:1281167,224x224x3,1000", "--ranks", "8")
        run = self.prediction(deck, "--machine", "h100", *images)
        an_image = run["compute"]["model_flops"] / run["batch"]["samples"]
        self.assertEqual("%.2f" % (an_image / 1e9), "24.30")
        deck = os.path.join(INPUTS, "recipes", "gpt2_124m.toml")
        tokens = ("--assume", "tokens:1000000000,50257", "--ranks", "8")
        run = self.prediction(deck, "--machine", "h100", *tokens)
        # The vocabulary of 50257 is padded to 50304.
        a_token = run["compute"]["model_flops"] / run["batch"]["samples"] / 1024
        self.assertEqual("%.3f" % (a_token / 1e9), "0.798")

    def test_published_costs_of_training(self):
        gpt3 = self.prediction("--model-size", "175B", "--tokens", "300B")
        self.assertEqual("%.2e" % gpt3["compute"]["flops"], "3.15e+23")
        self.assertEqual(round(gpt3["compute"]["pf_days"]), 3646)
        arguments = ("--model-size", "13B", "--tokens", "1T", "--rate", "300T", "--ranks", "1000")
        run = self.prediction(*arguments)
        self.assertEqual("%.1e" % run["compute"]["flops"], "7.8e+22")
        self.assertEqual(round(run["time"]["gpu_hours"]), 72222)
        self.assertAlmostEqual(run["time"]["days"], 72222 / 24000, delta=1e-3)
        self.assertIn("72222 GPU-hours", self.plan(*arguments).stdout)

    def test_price_of_the_option_and_of_the_machine(self):
        sizes = ("--model-size", "13B", "--tokens", "1T")
        h100 = self.prediction(*sizes, "--gpu", "h100")["time"]
        cheap = self.prediction(*sizes, "--gpu", "h100", "--price", "0.5")["time"]
        self.assertGreater(h100["cost_usd"], cheap["cost_usd"])
        self.assertAlmostEqual(cheap["cost_usd"] / cheap["gpu_hours"], 0.5)
        # A rate has no machine, and so no price.
        rate = self.prediction(*sizes, "--rate", "300T")["time"]
        self.assertNotIn("cost_usd", rate)
        self.assertIn("cost unknown: give --price USD", rate["text"])
        priced = self.prediction(*sizes, "--rate", "300T", "--price", "2")["time"]
        self.assertAlmostEqual(priced["cost_usd"], 2 * rate["gpu_hours"])
        # The cost of a deck is that of the hours of all devices.
        deck = os.path.join(INPUTS, "recipes", "resnet50_goyal.toml")
        images = ("--assume", "images:1281167,224x224x3,1000", "--ranks", "16")
        run = self.prediction(deck, "--machine", "a100", "--price", "3", *images)["run"]
        self.assertAlmostEqual(run["cost_usd"], 3 * 16 * run["seconds"] / 3600)

    def test_price_without_a_cost_is_refused(self):
        deck = os.path.join(INPUTS, "recipes", "resnet50_goyal.toml")
        for arguments, words in (
            (("--model-size", "13B", "--price", "2"), "--price: needs GPU-hours"),
            (("--model-size", "13B", "--price", "0"), "must be a number above 0"),
            (("--model-size", "13B", "--price", "2 USD"), "--price"),
            ((deck, "--prove", "--price", "2"), "--price with --search or --prove"),
            ((deck, "--machine", "h100", "--search", "--price", "2"), "--price with --search"),
        ):
            self.assertIn(words, self.plan(*arguments, expect=2).stderr, arguments)

    def test_every_known_machine_has_a_price(self):
        for name in ("a100", "h100", "h200", "b200", "gh200"):
            run = self.prediction("--model-size", "7B", "--tokens", "1T", "--gpu", name)
            self.assertGreater(run["time"]["cost_usd"], 0, name)

    def test_both_compute_optimal_forms_are_printed_and_differ(self):
        budget = self.prediction("--budget", "1e22", "--gpu", "h100", "--mfu", "0.5")
        self.assertAlmostEqual(budget["time"]["flops_per_s_per_gpu"], 0.5 * 989.4e12, delta=1e6)
        rule, other = budget["optimal"], budget["other"]
        self.assertEqual("%.3f" % (rule["parameters"] / 1e11), "0.091")
        self.assertEqual("%.2f" % (rule["tokens"] / 1e11), "1.83")
        self.assertAlmostEqual(rule["flops"], 1e22, delta=1e8)
        self.assertAlmostEqual(other["parameters"], 0.7e11, delta=1)
        self.assertAlmostEqual(other["tokens"], 1.4e11, delta=1)
        self.assertIn("differs", other["text"])
        # The same budget in hours.
        hours = str(budget["time"]["gpu_hours"])
        again = self.prediction("--gpu-hours", hours, "--gpu", "h100", "--mfu", "0.5")
        self.assertAlmostEqual(again["optimal"]["parameters"] / rule["parameters"], 1, delta=1e-9)
        # A budget and one size give the other size.
        sized = self.prediction("--budget", "6e21", "--model-size", "1B")
        self.assertAlmostEqual(sized["model"]["tokens"], 1e12, delta=1e3)

    def test_gpus_of_a_model_size(self):
        run = self.prediction("--model-size", "7B", "--gpu", "h100")
        self.assertEqual(run["state"]["bytes_per_parameter"], 18)
        self.assertFalse(run["ddp"]["fits"])
        # 16 bytes a parameter: 112 GB into 80 GB each, or into half of it.
        self.assertEqual(run["sharded"]["gpus"], 2)
        self.assertEqual(run["sharded"]["gpus_with_half_free"], 3)
        small = self.prediction("--model-size", "124M", "--gpu", "h100")
        self.assertTrue(small["ddp"]["fits"])

    def test_mistakes_without_a_deck_are_refused(self):
        for arguments, saying in (
            ((), "--model-size"),
            (("--model-size", "7X"), "--model-size = 7X: must be a number above 0"),
            (("--model-size", "-7B"), "above 0"),
            (("--tokens", "nan", "--model-size", "7B"), "--tokens = nan"),
            (("--tokens", "1T"), "without a deck needs --model-size"),
            (("--budget", "1e21", "--gpu-hours", "7"), "exclude each other"),
            (("--gpu-hours", "7"), "--machine"),
            (("--budget", "1e21", "--model-size", "7B", "--tokens", "1T"), "no budget to choose"),
            (("--budget", "1e21", "--mfu", "0.4"), "--mfu: needs --machine"),
            (("--budget", "1e21", "--gpu", "h100", "--mfu", "40"), "at most 1"),
            (("--budget", "1e21", "--ranks", "8"), "--ranks: needs --machine"),
            (("--budget", "1e21", "--set", "batch.micro=1"), "belong to a deck"),
            (("deck.toml", "--machine", "h100", "--budget", "1e21"), "without a deck"),
        ):
            with self.subTest(arguments=arguments):
                self.assertIn(saying, self.plan(*arguments, expect=2).text)

    def test_a_found_layout_is_planned_alike(self):
        """With the printed tables in the deck, and with the keys as --set."""
        search = ("deck.toml", "--machine", "h100", "--ranks", "4", "--search")
        found = self.prediction(*search)
        best = found["best"]
        self.assertEqual(len(best), 10)
        seconds = [layout["seconds"] for layout in best]
        self.assertEqual(seconds, sorted(seconds))
        lines = self.plan(*search).stdout
        self.assertTrue(lines.endswith(found["tables"]), lines)
        for layout in best:
            self.assertIn(layout["layout"], lines)
        with open(self.path("deck.toml")) as file:
            text = file.read()
        kept, inside = [], False
        for line in text.splitlines():
            if line.startswith("["):
                inside = line in ("[batch]", "[parallel]")
            if not inside:
                kept.append(line)
        with open(self.path("pasted.toml"), "w") as file:
            file.write("\n".join(kept) + "\n" + found["tables"])
        pasted = self.prediction("pasted.toml", "--machine", "h100", "--ranks", "4")
        keys = [word for key in best[3]["keys"].items() for word in ("--set", "%s=%s" % key)]
        given = self.prediction("deck.toml", "--machine", "h100", "--ranks", "4", *keys)
        for planned, layout in ((pasted, best[0]), (given, best[3])):
            self.assertEqual(planned["step"]["seconds"], layout["step_seconds"])
            memory = planned["memory"]
            self.assertEqual(memory["bytes"] + memory["reserved_bytes"], layout["bytes"])
            self.assertEqual(planned["batch"]["samples"], 64)
            self.assertAlmostEqual(planned["rate"]["mfu"], layout["mfu"], delta=1e-9)

    def test_rejected_layouts_are_counted_by_reason(self):
        found = self.prediction("deck.toml", "--machine", "h100", "--ranks", "4", "--search")
        refused = {entry["reason"]: entry["layouts"] for entry in found["refused"]}
        tensor = [count for reason, count in refused.items() if "gpt" in reason]
        self.assertEqual(len(tensor), 1, refused)
        self.assertGreater(tensor[0], 0)
        counted = len(found["best"]) + found["slower"] + found["too_large"]["layouts"]
        self.assertEqual(found["layouts"], counted + sum(refused.values()))
        # A fixed key rejects nothing: the others are not in the space.
        arguments = ("deck.toml", "--machine", "h100", "--ranks", "4", "--search")
        fixed = self.prediction(*arguments, "--set", "parallel.tensor=1")
        self.assertFalse([entry for entry in fixed["refused"] if "gpt" in entry["reason"]])

    def test_no_layout_that_fits_names_the_smallest(self):
        with open(self.path("small.toml"), "w") as file:
            file.write(CPU_MACHINE.replace("bytes = 8_000_000_000", "bytes = 100_000"))
        result = self.plan(
            "deck.toml", "--machine", "./small.toml", "--ranks", "2", "--search", expect=2
        )
        self.assertIn("no layout of 2 ranks fits", result.stderr)
        self.assertIn("parallel.tensor = 1", result.stderr)

    def test_a_search_for_512_ranks_answers_soon(self):
        deck = os.path.join(INPUTS, "recipes", "resnet50_goyal.toml")
        images = ("--assume", "images:1281167,224x224x3,1000", "--ranks", "512")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        found = self.prediction(deck, "--machine", "h100", "--search", *images)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        # 4 s of processor time alone.
        self.assertLess(after.ru_utime - before.ru_utime, 20)
        self.assertEqual(len(found["best"]), 10)
        self.assertLess(found["predicted"], found["layouts"] / 50)
        self.assertIn("batch norm", found["remarks"][0])

    def test_a_job_file_starts_the_layout(self):
        os.rename(self.path("deck.toml"), self.path("it's.toml"))
        arguments = ("it's.toml", "--machine", "h100", "--ranks", "16")
        changes = ("--set", "batch.micro=4")
        job = self.path("job.sh")
        lines = self.plan(*arguments, *changes, "--search", "--sbatch", "job.sh").stdout
        self.assertIn("job        job.sh: 1 job", lines)
        with open(job) as file:
            text = file.read()
        for option in ("nodes=2", "ntasks-per-node=8", "gpus-per-node=8", "cpus-per-task=14"):
            self.assertIn("\n#SBATCH --%s\n" % option, text)
        # The run takes less than a second: ten minutes and a rounded one.
        self.assertIn("\n#SBATCH --time=0:11:00\n", text)
        os.symlink(os.path.join(ROOT, "slurm"), self.path("slurm"))
        for name, body in {"srun": 'printf "%s\\n" "$@" >starts', "trireme": "exit 0"}.items():
            with open(self.path(name), "w") as file:
                file.write("#!/bin/bash\n%s\n" % body)
            os.chmod(self.path(name), 0o755)
        environment = dict(os.environ, SLURM_JOB_ID="1", SLURM_SUBMIT_DIR=self.folder)
        environment.update(PATH=self.folder + ":" + os.environ["PATH"], TRIREME="./trireme")
        started = subprocess.run(
            ["bash", job], cwd=self.folder, env=environment, capture_output=True, text=True
        )
        self.assertEqual(started.returncode, 0, started.stdout + started.stderr)
        with open(self.path("starts")) as file:
            words = file.read().splitlines()
        sets = words[words.index("train") + 2 :]
        self.assertEqual(words[words.index("train") + 1], "it's.toml")
        self.assertIn("batch.micro=4", sets)
        # The program takes these words.
        checked = harness.run("check", "it's.toml", *sets, "--ranks", "16", cwd=self.folder)
        self.assertEqual(checked.returncode, 0, checked.text)

    def test_a_long_run_is_a_chain_of_jobs(self):
        arguments = ("deck.toml", "--machine", "h100", "--ranks", "4")
        self.plan(*arguments, "--set", "run.stop=1000000000 steps", "--sbatch", "job.sh")
        with open(self.path("job.sh")) as file:
            text = file.read()
        self.assertIn("#SBATCH --time=12:00:00\n", text)
        self.assertIn("#SBATCH --nodes=1\n", text)
        self.assertRegex(text, r"TRIREME_JOB='job.sh' slurm/chain.sh \d+ 'deck.toml'\n")

    def test_mistakes_are_refused(self):
        one_stage = ("--machine", "h100", "--ranks", "3", "--set", "parallel.pipeline=1")
        for arguments, saying in (
            (("deck.toml",), "--machine"),
            (("deck.toml", "--prove", "--ops"), "--ops"),
            (("deck.toml", "--prove", "--sbatch", "job.sh"), "--sbatch"),
            (("deck.toml", "--search"), "--machine"),
            (("deck.toml", "--search", "--prove"), "search first"),
            (("deck.toml", "--search", "--machine", "h100", "--ops"), "--ops"),
            (("--search", "--machine", "h100"), "DECK"),
            (("--model-size", "7B", "--search"), "belong to a deck"),
            (("deck.toml", "--search", *one_stage), "permits none"),
            (("deck.toml", "--prove", "--ranks", "3"), "batch.global"),
            (("deck.toml", "--machine", "h10"), "did you mean h100?"),
            (("deck.toml", "--machine", "./missing.toml"), "missing.toml"),
            (("deck.toml", "--machine", "h100", "--ranks", "3"), "batch.global"),
            (("missing.toml", "--machine", "h100"), "missing.toml"),
        ):
            result = self.plan(*arguments, expect=2)
            self.assertIn(saying, result.text)

    def test_a_file_is_written_and_nothing_else(self):
        self.plan("deck.toml", "--machine", "h100", "--ranks", "4", "--json", "plan.json")
        with open(self.path("plan.json")) as file:
            self.assertEqual(json.load(file)["layout"]["ranks"], 4)


if __name__ == "__main__":
    unittest.main()
