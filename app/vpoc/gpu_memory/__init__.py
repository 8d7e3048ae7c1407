"""Memory of GPUs, as torch and as the amdgpu driver report it, and when to release some of it."""
