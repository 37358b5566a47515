"""The launcher of `clustered`: few tiles of a layer in 16 bits; a cluster's programs add their parts of K."""

from kernels.common.padded import padded
from kernels.matmul.clustered import multiplies_in_clusters

from .spaces import SPACE
from .tiled import launch_tiled, outputs


def launch_clustered(
    x, weight, bias=None, residual=None, activation="none", scale=1.0, out_dtype=None, keep=False, *, config
):  # fmt: skip
    """y [m, n], and with ``keep`` (y, z); operands off 16 bytes are copied first, what does not fit is `tiled`'s."""
    y, z = outputs(x, weight, out_dtype, keep)
    same = x.dtype == weight.dtype and x.element_size() == 2
    if not same or not multiplies_in_clusters(y, x.shape[1], config):
        plain = dict(zip(SPACE, (64, 64, 32, 8, 4, 3), strict=True))
        return launch_tiled(x, weight, bias, residual, activation, scale, out_dtype, keep, config=plain)
    from kernels.matmul.hopper_clustered import multiply_in_clusters

    multiply_in_clusters(
        padded(x), padded(weight.t()), y,
        bias=bias, residual=residual, z=z, activation=activation, scale=scale, config=config,
    )  # fmt: skip
    return (y, z) if keep else y
