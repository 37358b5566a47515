"""Calls captured in a CUDA graph."""

import torch


def captured(run):
    """The graph of ``run`` and what it returned; the caller has run it before, on another stream."""
    graph, usual = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph):
            results = run()
    finally:
        torch.cuda.set_stream(usual)  # a capture that fails leaves its own stream behind
    return graph, results
