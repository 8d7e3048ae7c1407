"""The GPUs of this host, as driver and kernel report them."""
