"""One tile from load to store, whatever its shape: f(x) or f(x) up, and the gradients of both."""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
SQRT_HALF = tl.constexpr(0.7071067811865476)
TANH_SCALE = tl.constexpr(1.5957691216057308)  # 2 sqrt(2 / pi)
INV_SQRT_2PI = tl.constexpr(0.3989422804014327)
CUBIC = tl.constexpr(0.044715)


@triton.jit
def _phi(x, EXACT: tl.constexpr):
    """(Phi(x), exp(-x^2 / 2)) in fp32.

    erf takes 35 instructions an element, more than 16-bit gelu has time for on an H200.  Without EXACT the tail is
    exp(-z^2 / 2) G(z) for z = |x|, with G a polynomial of degree 9 about 3 (minimax fit, relative error 5e-5 up to
    z = 4, a tenth of fp16's rounding, and 2e-3 at 6, where x Phi(x) is below fp16's least number): 20 instructions.
    Beyond 6 G stays what it is there: closer than 1 + erf, which is 0 from x = -5.6 on.
    """
    density = tl.exp2(x * x * (-0.5 * LOG2E))
    if EXACT:
        phi = 0.5 + 0.5 * tl.erf(x * SQRT_HALF)
    else:
        z = tl.minimum(tl.abs(x), 6.0) - 3.0
        g = 2.877676251955563e-06 + z * -8.44791657073074e-07
        g = 9.194158110403805e-07 + z * g
        g = 1.6601548850303516e-05 + z * g
        g = -0.0001593693159520626 + z * g
        g = 0.0005884808488190174 + z * g
        g = -0.0022616125643253326 + z * g
        g = 0.009126696735620499 + z * g
        g = -0.03441919758915901 + z * g
        g = 0.12151846289634705 + z * g
        phi = tl.where(x > 0, 1.0 - density * g, density * g)
    return phi, density


@triton.jit
def share_of(x, KIND: tl.constexpr, EXACT: tl.constexpr):
    """The share of x that passes, f(x) / x, in fp32."""
    if KIND == "gelu":
        share, _ = _phi(x, EXACT)
    elif KIND == "gelu_tanh":
        share = tl.sigmoid(x * (1 + x * x * CUBIC) * TANH_SCALE)
    else:
        share = tl.sigmoid(x)
    return share


@triton.jit
def share_and_slope(x, KIND: tl.constexpr, EXACT: tl.constexpr):
    """f(x) / x and f'(x), in fp32."""
    if KIND == "gelu":
        share, density = _phi(x, EXACT)
        slope = share + x * density * INV_SQRT_2PI
    else:
        inner, growth = x, x  # the sigmoid's argument, and x times its derivative
        if KIND == "gelu_tanh":
            inner = x * (1 + x * x * CUBIC) * TANH_SCALE
            growth = x * (1 + x * x * (3 * CUBIC)) * TANH_SCALE
        share = tl.sigmoid(inner)
        # 1 - share cancels where share is nearly 1: too little for 16 bits to see.
        rest = tl.sigmoid(-inner) if EXACT else 1.0 - share
        slope = share + growth * share * rest
    return share, slope


@triton.jit
def forward_tile(x_ptrs, up_ptrs, out_ptrs, mask, KIND: tl.constexpr, MASKED: tl.constexpr):
    """Load, compute, store one tile; ``up_ptrs`` is None for what has no second factor."""
    mask = mask if MASKED else None
    x = tl.load(x_ptrs, mask=mask)
    if up_ptrs is not None:
        up = tl.load(up_ptrs, mask=mask).to(tl.float32)
    y = x.to(tl.float32) * share_of(x.to(tl.float32), KIND, x.dtype == tl.float32)
    if up_ptrs is not None:
        y *= up
    tl.store(out_ptrs, y, mask=mask)


@triton.jit
def backward_tile(
    x_ptrs, up_ptrs, dy_ptrs, dx_ptrs, dup_ptrs, mask, KIND: tl.constexpr, MASKED: tl.constexpr
):  # fmt: skip
    """The same for the gradients."""
    mask = mask if MASKED else None
    x = tl.load(x_ptrs, mask=mask)
    dy = tl.load(dy_ptrs, mask=mask).to(tl.float32)
    if up_ptrs is not None:
        up = tl.load(up_ptrs, mask=mask).to(tl.float32)
    share, slope = share_and_slope(x.to(tl.float32), KIND, x.dtype == tl.float32)
    if up_ptrs is not None:
        tl.store(dup_ptrs, dy * (x.to(tl.float32) * share), mask=mask)
        dy *= up
    tl.store(dx_ptrs, dy * slope, mask=mask)
