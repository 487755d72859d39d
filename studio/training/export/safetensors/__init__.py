"""Exports for Transformers and PEFT: weights in safetensors, whole models or adapters alone."""
