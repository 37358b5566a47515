"""Threads: recordings of one serve all, on streams of their own; and first calls within threads."""

import threading

import pytest
import torch
from calls.table import CALLS, DIFFERENTIABLE, assert_near, weighted

import kernels

pytestmark = pytest.mark.gpu

THREADS = 8


def in_threads(work, count=THREADS):
    """``work(number)`` in fresh threads at once, each on a stream of its own; the first exception is raised."""
    failures, gate = [], threading.Barrier(count)
    ready = torch.cuda.Event()
    ready.record()

    def run(number):
        try:
            stream = torch.cuda.Stream()
            gate.wait(timeout=60)
            with torch.cuda.stream(stream):
                stream.wait_event(ready)
                work(number)
            stream.synchronize()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def products(rows):
    """fp16, with rows of a multiple of 16 bytes: on Hopper the copy engine reads them through host descriptors."""
    a = torch.randn(2, rows, 64, device="cuda", dtype=torch.float16)
    b = torch.randn(2, 64, 96, device="cuda", dtype=torch.float16)
    return a, b, torch.bmm(a, b)


def test_bmm_recorded_in_this_thread_is_repeated_in_fresh_ones(launches):
    given = [products(128) for _ in range(THREADS)]
    for a, b, _ in given[:1] * 3:
        kernels.bmm(a, b)
    torch.cuda.synchronize()
    launches.clear()

    def work(number):
        a, b, expected = given[number]
        for _ in range(4):  # each result at an address that may need a map of its own
            found = kernels.bmm(a, b)
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)

    for _ in range(50):
        in_threads(work)
    assert launches == []


def test_the_first_thing_that_a_thread_does_with_the_gpu_may_be_a_repeated_call():
    """Nothing has bound the context in it yet: neither a stream of its own nor an allocation."""
    a, b, expected = products(112)
    for _ in range(3):
        kernels.bmm(a, b)
    torch.cuda.synchronize()
    for _ in range(50):
        found, failures = [], []

        def work(found=found, failures=failures):
            try:
                found.append(kernels.bmm(a, b))
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures[0]
        torch.cuda.synchronize()
        for x in found:
            torch.testing.assert_close(x, expected, rtol=1e-2, atol=1e-2)


def test_first_calls_within_threads_are_right():
    """Each of another shape, and then all of one: nobody has recorded either."""
    for rows in ([40 + 8 * number for number in range(THREADS)], [136] * THREADS):
        given = [products(r) for r in rows]

        def work(number, given=given):
            a, b, expected = given[number]
            for _ in range(3):
                torch.testing.assert_close(kernels.bmm(a, b), expected, rtol=1e-2, atol=1e-2)

        in_threads(work)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.label)
def test_every_function_may_be_called_from_several_threads_at_once(call):
    given = [call.draw("cuda", seed=number) for number in range(4)]
    expected = [call.run(inputs) for inputs in given]
    torch.cuda.synchronize()

    def work(number):
        for _ in range(3):
            found = call.run(given[number])
        assert_near(found, expected[number], call, call.dtype)

    in_threads(work, 4)


@pytest.mark.parametrize("call", DIFFERENTIABLE, ids=lambda call: call.label)
def test_gradients_may_be_taken_in_several_threads_at_once(call):
    def gradients(number):
        inputs = call.leaves(call.draw("cuda", seed=number))
        return torch.autograd.grad(weighted(call.run(inputs)), [inputs[name] for name in call.wanting])

    expected = [gradients(number) for number in range(4)]
    torch.cuda.synchronize()
    in_threads(lambda number: assert_near(gradients(number), expected[number], call, call.dtype, "gradient"), 4)
