"""The input of the network: samples, their scaling, their order, and the feeds that bring them to the device."""
