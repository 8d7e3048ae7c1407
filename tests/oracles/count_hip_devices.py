"""Count devices through AMD's HIP library, as any program built with HIP does, and print the answer."""

import ctypes
import sys
from pathlib import Path

libraries = Path(sys.executable).parents[1] / "lib/x86_64-linux-gnu"
hip = ctypes.CDLL(str(next(libraries.glob("libamdhip64.so.[0-9]"))))
hip.hipGetErrorName.restype = hip.hipGetErrorString.restype = ctypes.c_char_p
count = ctypes.c_int(-1)
error = hip.hipGetDeviceCount(ctypes.byref(count))
print(f"{hip.hipGetErrorName(error).decode()}: {hip.hipGetErrorString(error).decode()}; {count.value} devices")
