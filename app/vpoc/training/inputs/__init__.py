"""The input of the network: samples, their scaling, their order, and their way to the device."""
