"""Exports in GGUF, the format of llama.cpp and the programs on it, with a Modelfile for Ollama.

    the model in one folder  ->  GGUF  ->  read back by Transformers  ->  weights, loss and tokens

llama.cpp has its own tokenizers, and Ollama its own templates. What either would read differently
from the run is refused in words, or said in the report.
"""
