"""The list of checks, from the import to several devices that work together.

Limits are generous for checks that fill caches first.
"""

from vpoc.probes.check import Check

CHECKS = "vpoc.probes.checks"

ALL_CHECKS = (
    Check("import", "torch and numpy can be imported and exchange data", 300, f"{CHECKS}.stack:imports", (), True),
    Check("device", "the device is there, and what it is", 180, f"{CHECKS}.stack:device", (), True),
    Check("allocate", "memory can be had, filled and read back", 180, f"{CHECKS}.memory:allocate"),
    Check("copy", "copies of 4 KB to 1 GB arrive unchanged", 180, f"{CHECKS}.memory:copy"),
    Check("matmul-fp32", "matrix products in float32", 120, f"{CHECKS}.products:matmul", ("float32",)),
    Check("matmul-fp16", "matrix products in float16", 120, f"{CHECKS}.products:matmul", ("float16",)),
    Check("matmul-bf16", "matrix products in bfloat16", 120, f"{CHECKS}.products:matmul", ("bfloat16",)),
    Check(
        "hipblaslt-shape",
        "the product that hipBLASLt was seen to fail at (m 8, n 412, k 896, first matrix transposed)",
        120,
        f"{CHECKS}.products:hipblaslt_shape",
    ),
    Check("addmm", "a matrix product with a bias added, as in a linear layer", 120, f"{CHECKS}.products:addmm"),
    Check("convolution", "a convolution (MIOpen on AMD GPUs)", 300, f"{CHECKS}.products:convolution"),
    Check("attention-forward", "answers of the 2.9 M attention model", 180, f"{CHECKS}.networks:forward"),
    Check("attention-backward", "gradients of the 2.9 M attention model", 180, f"{CHECKS}.networks:backward"),
    Check("compile", "torch.compile, forward and backward", 600, f"{CHECKS}.networks:compiled"),
    Check("optimizer-step", "steps of Adam", 120, f"{CHECKS}.networks:optimizer_step"),
    Check("fragmented", "a large allocation after memory was fragmented", 180, f"{CHECKS}.memory:fragmented"),
    Check("peer-copy", "copies between every two GPUs, both ways, read back", 180, f"{CHECKS}.several:peer_copy"),
    Check(
        "all-reduce", "sums over processes (NCCL or RCCL on GPUs, gloo on a CPU)", 240, f"{CHECKS}.several:all_reduce"
    ),
    Check("data-parallel", "answers of nn.DataParallel over all GPUs", 180, f"{CHECKS}.several:data_parallel"),
)
