#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the machine code of a kernel library for sm_90; needs no GPU.

For each kernel of a table: memory accesses are wide, nothing is in local memory, and a thread
takes no more registers than allowed. Only the compiler decides these.

Usage: device_code_test.py LIBRARY [CUOBJDUMP]. Exit code 77: skipped, because there is no
cuobjdump.
"""

import collections
import os
import re
import shutil
import subprocess
import sys

SKIP = 77
ARCHITECTURE = "sm_90"

# Requirements for one kernel: a minimum count per instruction, and the maximum `registers` of a
# thread. 32 registers allow all 2048 threads of a multiprocessor, 64 allow half of them.
Demand = collections.namedtuple("Demand", "kernel registers instructions")


def demand(kernel, registers, **instructions):
    """Returns the requirements for the kernels that match.

    `kernel`: a regular expression for the functor's name without namespaces, spaces and the
    template arguments after the policy. Instructions are written with _ instead of a dot.
    """
    return Demand(
        kernel, registers, {name.replace("_", "."): count for name, count in instructions.items()}
    )


def map_of(function, *operands):
    """Returns the name of a Map (kernels/space/elements.hpp): its results, then its operands."""
    return ".*".join([r"^PackedRows<Map<%s," % function, *map(re.escape, operands), r",[48]>$"])


PACKED = r".*,[48]>$"  # with packs, not element by element

TABLE = [
    # kernels/elementwise.cpp: two packs of each operand in flight, four for a single operand.
    demand(map_of("ReluForward"), 32, LDG_E_128=4, STG_E_128=4),
    demand(map_of("ReluBackward"), 40, LDG_E_128=4, STG_E_128=2),
    demand(
        map_of("Add", "<Matrix<BFloat16>>", "<Matrix<BFloat16>,Matrix<BFloat16const>>"),
        32,
        LDG_E_128=4,
        STG_E_128=2,
    ),
    demand(
        map_of("Add", "<Matrix<float>>", "<Matrix<float>,Matrix<floatconst>>"),
        32,
        LDG_E_128=4,
        STG_E_128=2,
    ),
    demand(
        map_of("Add", "<Matrix<BFloat16>>", "<Matrix<BFloat16const>,Shared<floatconst>>"),
        40,
        LDG_E_128=6,
        STG_E_128=4,
    ),
    demand(
        map_of("Add", "<Matrix<BFloat16>>", "<Matrix<floatconst>,Shared<floatconst>>"),
        32,
        LDG_E_128=5,
        STG_E_64=4,
    ),
    demand(
        map_of("Add", "<Matrix<float>>", "<Matrix<floatconst>,Shared<floatconst>>"),
        32,
        LDG_E_128=5,
        STG_E_128=4,
    ),
    demand(
        map_of("Same", "<Matrix<float>>", "<Matrix<BFloat16const>>"), 32, LDG_E_64=4, STG_E_128=4
    ),
    demand(
        map_of("Same", "<Matrix<BFloat16>>", "<Matrix<floatconst>>"), 32, LDG_E_128=4, STG_E_64=4
    ),
    demand(map_of("Exchange"), 32, LDG_E_128=4, STG_E_128=4),
    demand(map_of("AddScaled"), 32, LDG_E_128=4, STG_E_128=2),
    demand(
        map_of("Scale", "<Matrix<float>>", "<Matrix<floatconst>>"), 32, LDG_E_128=4, STG_E_128=4
    ),
    demand(r"^PackedRows<Fill<\w+>,[48]>$", 32, STG_E_128=4),
    demand(r"^PackedRows<Copy<Words<4>>,16>$", 32, LDG_E_128=4, STG_E_128=4),
    # kernels/cast_tensors.cpp: four packs in flight for each pair of types, assigned and added.
    demand(r"^OnTeamGroup<Cuda,CastTensors>$", 48, LDG_E_64=28, LDG_E_128=28, STG_E_128=42),
    # kernels/activation.cpp
    demand(map_of("GeluForward"), 40, LDG_E_128=4, STG_E_128=4, MUFU_EX2=16, MUFU_RCP=16),
    demand(map_of("GeluBackward"), 40, LDG_E_128=4, STG_E_128=2, MUFU_EX2=8, MUFU_RCP=8),
    demand(map_of("SwigluForward"), 40, LDG_E_128=4, STG_E_128=2),
    demand(map_of("SwigluBackward"), 48, LDG_E_128=6, STG_E_128=4),
    # kernels/dropout.cpp, without stochastic depth
    demand(
        r"^PackedRows<ApplyPacks<BFloat16,BFloat16,false,[012],false>,8>$",
        64,
        LDG_E_128=1,
        STG_E_128=1,
    ),
    demand(
        r"^PackedRows<ApplyPacks<BFloat16,BFloat16,true,[012],false>,8>$",
        72,
        LDG_E_128=2,
        STG_E_128=1,
    ),
    demand(
        r"^PackedRows<ApplyPacks<float,float,(true|false),[012],false>,4>$",
        64,
        LDG_E_128=1,
        STG_E_128=1,
    ),
    # kernels/float8.cpp: two packs of codes; a tile's four rows; four packs for the maximum.
    demand(r"^PackedRows<Cast<Float8(E4M3|E5M2)>,16>$", 40, LDG_E_128=4, STG_E_128=2),
    demand(r"^TransposeTiles<Cuda,Float8(E4M3|E5M2)>$", 64, LDG_E_64=4, STG_E_128=1),
    demand(r"^OnTeamGroup<Cuda,Pieces<8>>$", 64, LDG_E_128=4),
    # kernels/rotary.cpp: both halves of four heads.
    demand(r"^RotatePacks<(BFloat16,8|float,4)>$", 80, LDG_E_128=8, STG_E_128=8),
    # kernels/pooling.cpp
    demand(
        r"^PackedRows<MaxPoolForwardPacks<(BFloat16|float),3>" + PACKED,
        96,
        LDG_E_128=9,
        STG_E_128=1,
    ),
    demand(
        r"^PackedRows<MaxPoolBackwardBlocks<(BFloat16|float)>" + PACKED,
        80,
        LDG_E_128=4,
        STG_E_128=4,
    ),
    # kernels/row_sums.cpp
    demand(r"^PackedRows<SumSlices<(BFloat16|float),\w+>" + PACKED, 80, LDG_E_128=8, STG_E_128=1),
    demand(map_of("Scale", "Repeated<BFloat16const>"), 40, LDG_E_128=4, STG_E_128=4),
    # kernels/embedding.cpp
    demand(r"^PackedRows<Forward<(BFloat16|float)>" + PACKED, 40, LDG_E_128=4, STG_E_128=4),
    demand(r"^PackedRows<Gradient<BFloat16,(true|false)>" + PACKED, 48, LDG_E_64=4, STG_E_128=1),
    demand(r"^PackedRows<Gradient<float,(true|false)>" + PACKED, 48, LDG_E_128=4, STG_E_128=1),
    demand(r"^PackedRows<Runs<BFloat16>" + PACKED, 48, LDG_E_64=8, STG_E_128=1),
    demand(
        r"^PackedRows<PositionsBackward<BFloat16,(true|false)>" + PACKED,
        40,
        LDG_E_64=4,
        STG_E_128=1,
    ),
    demand(
        map_of("Sum", "<Matrix<BFloat16>>", "Cyclic<BFloat16const>"), 40, LDG_E_128=4, STG_E_128=2
    ),
    # kernels/image/image.cpp: without and with erasing and mixing, which reads the partner's bytes
    # too.
    demand(
        r"^PackedRows<PreparePacks<BFloat16,[134],[1348],false>,8>$", 40, LDG_E_U8=8, STG_E_128=1
    ),
    demand(r"^PackedRows<PreparePacks<float,[134],[134],false>,4>$", 40, LDG_E_U8=4, STG_E_128=1),
    demand(
        r"^PackedRows<PreparePacks<BFloat16,[134],[1348],true>,8>$", 72, LDG_E_U8=16, STG_E_128=1
    ),
    demand(r"^PackedRows<PreparePacks<float,[134],[134],true>,4>$", 72, LDG_E_U8=8, STG_E_128=1),
    # kernels/norm/norm_*_device.hpp: four rows of each operand in flight (eight of a single one),
    # and one row at the end of a chunk.
    demand(r"^SlabStatistics<Cuda,(BFloat16,8|float,4)>$", 80, LDG_E_128=10, STS_128=2),
    demand(
        r"^SlabApply<Cuda,(BFloat16,8|float,4),(true|false),false>$", 80, LDG_E_128=5, STG_E_128=5
    ),
    demand(r"^SlabApply<Cuda,(BFloat16,8|float,4),false,true>$", 80, LDG_E_128=10, STG_E_128=5),
    demand(
        r"^SlabApply<Cuda,(BFloat16,8|float,4),true,true>$",
        96,
        LDG_E_128=10,
        STG_E_128=5,
        STG_E_U8=5,
    ),
    demand(
        r"^SlabGradientSums<Cuda,(BFloat16,8|float,4),(true|false),false,false>$",
        80,
        LDG_E_128=10,
        STS_128=2,
    ),
    demand(
        r"^SlabGradientSums<Cuda,(BFloat16,8|float,4),true,true,true>$",
        80,
        LDG_E_128=10,
        LDG_E_U8=5,
        STG_E_128=5,
    ),
    demand(
        r"^SlabInputGradient<Cuda,(BFloat16,8|float,4),(true|false),(true|false)>$",
        112,
        LDG_E_128=10,
        STG_E_128=5,
    ),
    # kernels/norm/norm_joined_device.hpp: two rows of each operand in flight, and one at the end.
    demand(
        r"^SlabJoinedApply<Cuda,(BFloat16,8|float,4)>$", 96, LDG_E_128=6, STG_E_128=3, STG_E_U8=3
    ),
    demand(
        r"^SlabJoinedSums<Cuda,(BFloat16,8|float,4),true>$", 128, LDG_E_128=9, LDG_E_U8=3, STS_128=3
    ),
    demand(
        r"^SlabJoinedInput<Cuda,(BFloat16,8|float,4),true>$",
        128,
        LDG_E_128=9,
        LDG_E_U8=3,
        STG_E_128=6,
    ),
    demand(r"^Segment(Statistics|GradientSums)<Cuda>$", 96, LDG_E=16),
    demand(r"^FinishTeams<Cuda,Finish<false>>$", 96, LDG_E_64=16),
    # kernels/norm/row_norm_device.hpp: packs of two rows in flight per thread; four rows of two or
    # three operands, and single rows at the end of a share. (The last line's limit is for float16,
    # which needs instructions to unpack; 144 registers suffice for the others.)
    demand(
        r"^OnTeamGroup<Cuda,ForwardByTeam<(BFloat16,8|float,4),3,false,(true|false)>>$",
        128,
        LDG_E_128=9,
        STG_E_128=6,
    ),
    demand(
        r"^OnTeamGroup<Cuda,ForwardByTeam<(BFloat16,8|float,4),4,false,(true|false)>>$",
        128,
        LDG_E_128=12,
        STG_E_128=8,
    ),
    demand(
        r"^OnTeamGroup<Cuda,BackwardByTeam<(BFloat16,8|float,4),false,false>>$",
        144,
        LDG_E_128=10,
        STG_E_128=7,
    ),
    demand(
        r"^OnTeamGroup<Cuda,BackwardByTeam<(BFloat16,8|float,4),false,true>>$",
        168,
        LDG_E_128=15,
        STG_E_128=7,
    ),
    # kernels/softmax_row.hpp: rounds of four packs, of two, of one.
    demand(r"^OnTeamGroup<Cuda,StatisticsByTeam<(BFloat16|float)>>$", 64, LDG_E_128=7),
    demand(r"^OnTeamGroup<Cuda,GradientByTeam<float,BFloat16>>$", 64, LDG_E_128=7, STG_E_64=7),
    demand(
        r"^OnTeamGroup<Cuda,GradientByTeam<(float,float|BFloat16,BFloat16)>>$",
        64,
        LDG_E_128=7,
        STG_E_128=7,
    ),
    demand(r"^FusedByBlock<(BFloat16|float)>$", 64, LDG_E_128=7, STS_128=7, LDS_128=7, STG_E_128=7),
    demand(r"^OnTeamGroup<Cuda,RowByTeam<(BFloat16|float)>>$", 64, LDG_E_128=14, STG_E_128=7),
    # kernels/update/update_device.hpp: rounds of two packs of each array and of one. There are no
    # demands on the kernels with Clip.
    demand(
        r"^OnTeamGroup<Cuda,RuleChunk<SgdRule<0>,NoClip>>$",
        64,
        LDG_E_128=6,
        STG_E_128=3,
        STG_E_64=3,
    ),
    demand(
        r"^OnTeamGroup<Cuda,RuleChunk<(SgdRule<1>|LarsRule),NoClip>>$",
        64,
        LDG_E_128=9,
        STG_E_128=6,
        STG_E_64=3,
    ),
    demand(
        r"^OnTeamGroup<Cuda,RuleChunk<AdamWRule,NoClip>>$",
        80,
        LDG_E_128=12,
        STG_E_128=9,
        STG_E_64=3,
    ),
    demand(r"^OnTeamGroup<Cuda,RuleChunk<LambDirection,NoClip>>$", 80, LDG_E_128=12, STG_E_128=9),
    demand(
        r"^OnTeamGroup<Cuda,RuleChunk<LambStep,NoClip>>$", 64, LDG_E_128=6, STG_E_128=3, STG_E_64=3
    ),
    demand(r"^OnTeamGroup<Cuda,EmaChunk>$", 40, LDG_E_128=6, STG_E_128=3),
    demand(r"^OnTeamGroup<Cuda,RowSquareSumByTeam<NoClip>>$", 64, LDG_E_128=4),
    # kernels/update/step_decision.cpp: eight terms in flight, an index and a value each.
    demand(r"^OnTeamGroup<Cuda,SumOfListByTeam>$", 48, LDG_E_64=16),
]


class Kernel:
    """A kernel's code.

    `name`: of its functor; `launch`: Kokkos' kind of launch; `registers` per thread; `stack` bytes;
    `instructions`: the count of each instruction.
    """

    def __init__(self, name, launch, registers, stack, instructions):
        self.name, self.launch, self.registers, self.stack, self.instructions = (
            name,
            launch,
            registers,
            stack,
            instructions,
        )

    def faults(self, demanded):
        if self.stack:
            yield f"{self.stack} bytes of stack"
        for name in sorted(self.instructions):
            if name.startswith(("LDL", "STL")):
                yield f"{self.instructions[name]} {name}"
        if self.registers > demanded.registers:
            yield f"{self.registers} registers, {demanded.registers} allowed"
        for name, least in demanded.instructions.items():
            if self.instructions[name] < least:
                yield f"{self.instructions[name]} {name}, {least} wanted"


def with_narrow_types(demanded):
    """Yields the requirements, and the same ones for float16 if they are for bfloat16."""
    yield demanded
    if "BFloat16" in demanded.kernel:
        yield demanded._replace(kernel=demanded.kernel.replace("BFloat16", "Float16"))


def output_of(*command, **options):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **options).stdout


def functor_of(kernel):
    """Returns the shortened functor of a kernel, or "".

    Kokkos launches ParallelFor<functor, policy, ...>, kernels/space/block_group.hpp
    run_blocks<functor, threads>.
    """
    begin = next(
        (
            kernel.find(name) + len(name)
            for name in ("ParallelFor<", "run_blocks<")
            if name in kernel
        ),
        -1,
    )
    if begin < 0:
        return ""
    depth, end = 0, begin
    while end < len(kernel) and (depth or kernel[end] not in ",>"):
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(kernel[end], 0)
        end += 1
    name = re.sub(
        r"\(anonymous namespace\)::|\b(trireme|kernels|Kokkos|Impl|std|cuda|__1)::",
        "",
        kernel[begin:end],
    )
    name = re.sub(r",? *integer_sequence<[^>]*>|tuple(?=<)", "", name)
    return re.sub(r"\s", "", name)


def kernels_of(library, cuobjdump):
    options = ("-arch", ARCHITECTURE, library)
    resources = {}
    for name, registers, stack in re.findall(
        r"Function (\S+):\s*REG:(\d+) STACK:(\d+)",
        output_of(cuobjdump, "--dump-resource-usage", *options),
    ):
        resources[name] = int(registers), int(stack)
    code = re.split(
        r"^\s*Function : (\S+)$", output_of(cuobjdump, "-sass", *options), flags=re.MULTILINE
    )
    mangled, bodies = code[1::2], code[2::2]
    demangled = output_of("c++filt", input="\n".join(mangled)).splitlines()
    for symbol, name, body in zip(mangled, demangled, bodies):
        instructions = collections.Counter(
            re.findall(
                r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@\S+\s+)?([A-Z][\w.]*)", body, flags=re.MULTILINE
            )
        )
        launch = re.search(r"cuda_parallel_launch_(\w+?)_memory", name)
        yield Kernel(functor_of(name), launch and launch[1], *resources[symbol], instructions)


def main():
    library = sys.argv[1]
    cuobjdump = shutil.which(sys.argv[2] if len(sys.argv) > 2 else "cuobjdump")
    if cuobjdump is None:
        print("skipped: no cuobjdump")
        return SKIP
    os.environ["PATH"] = (
        os.path.dirname(cuobjdump) + os.pathsep + os.environ["PATH"]
    )  # cuobjdump starts nvdisasm
    kernels = list(kernels_of(library, cuobjdump))
    # Kokkos copies functors of more than 512 bytes to a buffer. Such a kernel cannot be in a CUDA
    # graph: it would read the functor of the last launch.
    failures = [
        f"{kernel.name}: its functor goes by {kernel.launch} memory, not with the launch"
        for kernel in kernels
        if kernel.launch not in (None, "local")
    ]
    if not any(kernel.launch == "local" for kernel in kernels):
        failures.append("no kernel is one that Kokkos launches")
    for demanded in (of_type for line in TABLE for of_type in with_narrow_types(line)):
        matching = [kernel for kernel in kernels if re.search(demanded.kernel, kernel.name)]
        if not matching:
            failures.append(f"no kernel is called {demanded.kernel}")
        for kernel in matching:
            failures += [f"{kernel.name}: {fault}" for fault in kernel.faults(demanded)]
    print(
        f"{len(kernels)} kernels for {ARCHITECTURE} in {library}; {len(TABLE)} lines of the table"
    )
    for failure in failures:
        print(failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
