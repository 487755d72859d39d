"""How busy this machine is: CPU, memory, disk and GPUs, sampled without torch."""
