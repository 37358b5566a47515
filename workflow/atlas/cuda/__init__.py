"""CUDA C++ peers: compile ``kernels/cuda/<name>.cu`` by nvcc, load it with cuda.core, launch it on torch's tensors."""
