"""Print the links between a host's nodes as AMD's runtime reads them, a line of JSON for each."""

import ctypes
import json
import sys
from pathlib import Path

# Constants of hsa.h and hsa_ext_amd.h.
AGENT_NODE = 16
POOL_HOPS, POOL_LINK = 1, 2
NUMBERS = ("min_latency", "max_latency", "min_bandwidth", "max_bandwidth")


class Link(ctypes.Structure):
    """`hsa_amd_memory_pool_link_info_t`."""

    _fields_ = (
        *((name, ctypes.c_uint32) for name in NUMBERS),
        *((name, ctypes.c_bool) for name in ("atomics_32", "atomics_64", "coherent")),
        ("kind", ctypes.c_int),
        ("distance", ctypes.c_uint32),
    )


Found = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p)
libraries = Path(sys.executable).parents[1] / "lib/x86_64-linux-gnu"
hsa = ctypes.CDLL(str(libraries / "libhsa-runtime64.so.1"))
handle, pointer = ctypes.c_uint64, ctypes.c_void_p
hsa.hsa_iterate_agents.argtypes = Found, pointer
hsa.hsa_agent_get_info.argtypes = handle, ctypes.c_int, pointer
hsa.hsa_amd_agent_iterate_memory_pools.argtypes = handle, Found, pointer
hsa.hsa_amd_agent_memory_pool_get_info.argtypes = handle, handle, ctypes.c_int, pointer


def collect(iterate: object, *first: int) -> list[int]:
    """Return the handles that a function of the runtime passes to its callback one by one."""
    handles: list[int] = []

    def note(one: int, _: object) -> int:
        handles.append(one)
        return 0

    status = iterate(*first, Found(note), None)  # type: ignore[operator]
    if status:
        sys.exit(f"status {status}")
    return handles


if status := hsa.hsa_init():
    sys.exit(f"hsa_init: status {status}")
nodes = {}
for agent in collect(hsa.hsa_iterate_agents):
    number = ctypes.c_uint32()
    hsa.hsa_agent_get_info(agent, AGENT_NODE, ctypes.byref(number))
    nodes[number.value] = agent
for node, agent in nodes.items():
    for to, other in nodes.items():
        hops = ctypes.c_uint32()
        pool = collect(hsa.hsa_amd_agent_iterate_memory_pools, other)[0]
        if node != to and not hsa.hsa_amd_agent_memory_pool_get_info(agent, pool, POOL_HOPS, ctypes.byref(hops)):
            links = (Link * hops.value)()
            hsa.hsa_amd_agent_memory_pool_get_info(agent, pool, POOL_LINK, links)
            told = [{name: getattr(link, name) for name, *_ in Link._fields_} for link in links]
            print(json.dumps({"node": node, "to": to, "links": told}))
