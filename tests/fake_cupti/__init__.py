"""A folder to put in front of PYTHONPATH: its `cupti` stands for NVIDIA's."""
