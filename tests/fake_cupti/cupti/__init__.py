"""Stands for NVIDIA's cupti-python where there is no GPU."""
