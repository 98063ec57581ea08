# SPDX-License-Identifier: Apache-2.0
"""Tests check_layers.py: it finds each kind of violation in a small tree, and none in a correct
one."""

import shutil
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))
import check_layers  # noqa: E402


class CheckLayers(unittest.TestCase):
    def setUp(self):
        self.root = Path(tempfile.mkdtemp(prefix="trireme_layers_"))
        self.write(
            "include/trireme/tensor/tensor.hpp",
            '#pragma once\n#include <vector>\n#include "trireme/base/check.hpp"\n',
        )
        self.write("src/tensor/tensor.cpp", '#include "trireme/tensor/tensor.hpp"\n')
        self.write(
            "src/tensor/CMakeLists.txt",
            "trireme_library(tensor SOURCES tensor.cpp PUBLIC trireme::base)\n",
        )

    def tearDown(self):
        shutil.rmtree(self.root)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def violations(self):
        return check_layers.check(self.root)[0]

    def expect_one(self, *words):
        found = self.violations()
        self.assertEqual(len(found), 1, found)
        for word in words:
            self.assertIn(word, found[0])

    def test_clean_tree(self):
        self.assertEqual(self.violations(), [])

    def test_upward_include(self):
        self.write("src/tensor/bad.cpp", '\n#include "trireme/train/step.hpp"\n')
        self.expect_one("src/tensor/bad.cpp:2", "tensor includes trireme/train/step.hpp")

    def test_upward_include_in_a_public_header(self):
        self.write(
            "include/trireme/base/bad.hpp", '#pragma once\n#  include "trireme/tensor/tensor.hpp"\n'
        )
        self.expect_one("include/trireme/base/bad.hpp:2", "base includes")

    def test_upward_link(self):
        self.write(
            "src/tensor/CMakeLists.txt",
            "trireme_library(tensor SOURCES tensor.cpp\n  PUBLIC trireme::base\n  PRIVATE "
            "trireme::ops)\n",
        )
        self.expect_one("src/tensor/CMakeLists.txt:3", "links trireme::ops")

    def test_deck_sees_the_libraries_below_it(self):
        self.write("include/trireme/model/options.hpp", "#pragma once\n")
        self.write("src/deck/deck.cpp", '#include "trireme/model/options.hpp"\n')
        self.assertEqual(self.violations(), [])
        self.write("include/trireme/train/options.hpp", "#pragma once\n")
        self.write("src/deck/deck.cpp", '#include "trireme/train/options.hpp"\n')
        self.expect_one("src/deck/deck.cpp:1", "deck includes")

    def test_the_world_of_mpi_is_duplicated_once_and_aborted(self):
        copy = "mpi_try(MPI_Comm_dup(MPI_COMM_WORLD, &main));\n"
        self.write("src/comm/mpi_communicator.cpp", copy + "// of MPI_COMM_WORLD\n")
        self.write(
            "src/comm/end.cpp", 'MPI_Abort(MPI_COMM_WORLD, 1); get("OMPI_COMM_WORLD_RANK");\n'
        )
        self.assertEqual(self.violations(), [])
        for line in (copy, "MPI_Barrier(MPI_COMM_WORLD);\n", "MPI_Comm all =\n  MPI_COMM_WORLD;\n"):
            self.write("src/comm/end.cpp", line)
            self.expect_one("src/comm/end.cpp:%d" % line.count("\n"), "for MPI_Abort alone")

    def test_a_family_of_models_is_named_in_its_library_alone(self):
        self.write(
            "src/model/gpt/family.cpp", 'extern const Family gpt_family{\n    .word = "gpt",\n};\n'
        )
        self.write("src/model/gpt/options.hpp", "#pragma once\nstruct GptOptions {\n};\n")
        self.write("src/model/model.cpp", 'GptOptions gpt; if (word == "gpt") gpt.layers = 1;\n')
        self.write(
            "src/train/good.cpp",
            '#include "gpt.hpp"  // a "gpt" has GptOptions\n'
            'add("nanogpt", "a gpt", "model.gpt"); const auto gpt = 2; gpt2::x(a.gpt2);\n',
        )
        self.assertEqual(self.violations(), [])
        for line in (
            "const auto& options = deck.model.gpt;",
            "options->gpt.width = 1;",
            "gpt::width(options);",
            'if (kind == "gpt") return;',
            'parse("kind = \\"gpt\\"");',
            "const model::GptOptions options;",
            "if (model.kind == model::ModelKind::image) return;",
        ):
            with self.subTest(line):
                self.write("src/train/bad.cpp", f"\n{line}\n")
                self.expect_one("src/train/bad.cpp:2", "ask the family")

    def test_an_update_rule_is_named_in_its_library_alone(self):
        self.write("src/optim/rules/sgd.cpp", 'const UpdateRule sgd{\n    .word = "sgd",\n};\n')
        self.write("src/optim/keys.cpp", 'if (word == "sgd") use(sgd);\n')
        self.write("src/train/good.cpp", 'add("update_sgd", "SGD");\n')
        self.assertEqual(self.violations(), [])
        for line in ('if (rule == optim::rule("sgd")) return;', "use(OptimizerKind::adamw);"):
            with self.subTest(line):
                self.write("src/train/bad.cpp", f"\n{line}\n")
                self.expect_one("src/train/bad.cpp:2", "ask the rule")

    def test_foreign_headers_out_of_place(self):
        places = {
            "mpi.h": "src/data/a.cpp",
            "nccl.h": "src/parallel/a.cpp",
            "hdf5.h": "src/checkpoint/a.cpp",
            "toml++/toml.h": "src/app/a.cpp",
            "toml++/toml.hpp": "src/train/a.cpp",
            "Kokkos_Core.hpp": "src/ops/a.cpp",
            "cuda_runtime.h": "src/train/a.cpp",
            "cublasLt.h": "src/model/a.cpp",
            "cudnn.h": "src/ops/a.cpp",
            "oneapi/dnnl/dnnl.hpp": "kernels/a.cpp",
            "dnnl.hpp": "src/model/a.cpp",
        }
        for header, name in places.items():
            with self.subTest(header):
                self.write(name, f"#include <{header}>\n")
                self.expect_one(f"{name}:1", header)
                (self.root / name).unlink()

    def test_foreign_headers_in_their_place(self):
        places = {
            "mpi.h": "src/comm/a.cpp",
            "hdf5.h": "src/io/a.cpp",
            "toml++/toml.h": "src/keys/a.cpp",
            "Kokkos_Core.hpp": "kernels/a.cpp",
            "cuda_runtime_api.h": "src/device/a.cpp",
            "cudnn.h": "src/ops/cuda/a.cpp",
            "oneapi/dnnl/dnnl.hpp": "src/ops/a.cpp",
        }
        for header, name in places.items():
            self.write(name, f"#include <{header}>\n")
        self.write("src/io/hdf5/hdf5.cpp", "#include <mpi.h>\n")
        self.assertEqual(self.violations(), [])
        self.write("src/io/file.cpp", "#include <mpi.h>\n")
        self.expect_one("src/io/file.cpp:1", "mpi.h")

    def test_a_header_of_ours_is_not_taken_for_a_foreign_one(self):
        self.write("src/ops/cuda/linear.hpp", "#pragma once\n")
        for header in ("cuda/linear.hpp", "ops/cuda/linear.hpp"):
            self.write("src/ops/linear.cpp", f'#include "{header}"\n')
            self.assertEqual(self.violations(), [])
        self.write("src/ops/linear.cpp", '#include "cuda/other.hpp"\n')
        self.expect_one("src/ops/linear.cpp:1", "cuda/other.hpp")

    def test_header_without_pragma_once(self):
        self.write("include/trireme/base/bad.hpp", "// a comment\n#pragma once\n")
        self.expect_one("include/trireme/base/bad.hpp:1", "#pragma once")

    def test_private_header_in_a_public_one(self):
        self.write("src/tensor/views/detail.hpp", "#pragma once\n")
        self.write(
            "include/trireme/tensor/bad.hpp", '#pragma once\n#include "tensor/views/detail.hpp"\n'
        )
        self.expect_one("include/trireme/tensor/bad.hpp:2", "public headers only")

    def test_own_header_is_not_the_first(self):
        self.write("include/trireme/kernels/norm/mean.hpp", "#pragma once\n")
        for name in ("tensor", "kernels/norm/mean"):
            path = f"{'' if '/' in name else 'src/tensor/'}{name}.cpp"
            own = f'#include "trireme/{name if "/" in name else "tensor/tensor"}.hpp"\n'
            self.write(path, "// Sums.\n" + own + "#include <vector>\n")
            self.assertEqual(self.violations(), [])
            self.write(path, "// Sums.\n#include <vector>\n" + own)
            self.expect_one(path, "its own header first")
            (self.root / path).unlink()

    def test_file_too_long(self):
        for name in ("src/tensor/long.cpp", "tests/long_test.py"):
            limit = check_layers.MAX_FILE_LINES[name.split("/")[0]]
            self.write(name, "\n" * limit)
            self.assertEqual(self.violations(), [])
            self.write(name, "\n" * (limit + 1))
            self.expect_one(name, "split it")
            (self.root / name).unlink()

    def test_too_many_files_in_a_folder(self):
        for folder in ("src/tensor/views", "kernels", "include/trireme/tensor"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
            for number in range(check_layers.MAX_FOLDER_FILES - len(self.files_of(folder))):
                self.write(f"{folder}/{number}.hpp", "#pragma once\n")
            self.assertEqual(self.violations(), [])
            self.write(f"{folder}/last.hpp", "#pragma once\n")
            self.expect_one(folder, "divide it into topics")
            shutil.rmtree(self.root / folder)

    def files_of(self, folder):
        return list((self.root / folder).iterdir())

    def test_unknown_library(self):
        self.write("src/utils/a.cpp", "\n")
        self.expect_one("src/utils/a.cpp", "no library of Trireme")

    def test_path_into_another_library(self):
        for name in ("src/tensor/detail.hpp", "src/ops/dispatch/problem.hpp", "kernels/launch.hpp"):
            self.write(name, "#pragma once\n")
        self.write("src/tensor/cpu/good.cpp", '#include "tensor/detail.hpp"\n')
        self.write("kernels/norm/good.cpp", '#include "kernels/launch.hpp"\n')
        self.assertEqual(self.violations(), [])
        for header in (
            "../ops/dispatch/problem.hpp",
            "ops/dispatch/problem.hpp",
            "kernels/launch.hpp",
        ):
            self.write("src/tensor/bad.cpp", f'#include "{header}"\n')
            self.expect_one("src/tensor/bad.cpp:1", "public header")

    def test_this_project_holds(self):
        self.assertEqual(check_layers.check(ROOT)[0], [])


if __name__ == "__main__":
    unittest.main()
