"""The GPUs of this host, as driver and kernel tell of them."""
