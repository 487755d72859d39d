"""Exports whose linear layers are quantised by bitsandbytes or torchao, for Transformers.

    the model in one folder  ->  quantised while it is loaded  ->  written  ->  read back  ->  loss

The config in the folder says how the layers are quantised, so that they load as they are. torchao's
4-bit weights are not among the formats: they need a package of kernels, and cannot be read back.
"""
