"""What a worker process of a stage finds: the config that a call of matmul would run on an H200."""

from atlas import catalog
from atlas.declaration import GPU, case, choose
from atlas.declaration.hardware import pretend

H200 = GPU(
    "h200", "cuda", 90, sms=132, shared_bytes=232448, memory_bytes=2**37, l2_bytes=2**25, device_name="NVIDIA H200"
)


def serve(connection, sizes):
    with pretend(H200):
        variant, config = choose(catalog.load("matmul"), "forward", case("bf16", **sizes), "cpu")
    connection.send((variant.name, config))
