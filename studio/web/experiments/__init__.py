"""Pages of experiments, and the form that creates one."""
