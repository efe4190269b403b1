"""Seconds of matrix products: their operations, and with some efficiency sets what their operands move.

A product of M rows, N outputs and K inputs, b bytes a value that it reads, q of traffic to bring one into the
number format, at w bytes a second::

    forward          2 M N K / rate + (b (M K + N K) + 2 M N + q M K) / w
    input gradient   2 M N K / rate + (b (M N + N K) + 2 M K + q M N) / w
    weight gradient  2 M N K / rate + (b (M N + M K) + 6 N K) / w

Results have 16 bits; a weight's gradient is read in 16 and added up in 32 bits, 6 bytes a weight beside the
result. A large product hides what it moves, so that sets which were fitted to those leave it in the rate.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipesim.costs.transformer.flops import Shapes

_ALIGNMENT = 64
_RESULT_BYTES, _GRADIENT_BYTES = 2, 6


@dataclass(frozen=True, slots=True)
class Rates:
    """What one device sustains: peak rates times efficiencies."""

    layer_gemm_flops_per_s: float
    unaligned_gemm: float
    """Factor on the rate of a layer's product where a width is not a multiple of 64."""
    grouped_gemm: float
    """Factor on the rate of the products of experts."""
    head_gemm_flops_per_s: float
    attention_flops_per_s: float
    memory_bytes_per_s: float
    operand_bytes: float | None = None
    """Of a value that a layer's product reads; None: what a product moves is in its rate."""
    quantise_bytes: float = 0.0
    """Memory traffic a value of bringing a product's input into its format."""


@dataclass(frozen=True, slots=True)
class ProductTimes:
    """Seconds of products in the forward, and of the two that their backward has for each."""

    forward_s: float
    input_gradient_s: float
    weight_gradient_s: float

    def __add__(self, other: ProductTimes) -> ProductTimes:
        return ProductTimes(
            self.forward_s + other.forward_s,
            self.input_gradient_s + other.input_gradient_s,
            self.weight_gradient_s + other.weight_gradient_s,
        )


def products(
    shapes: Shapes,
    num_rows: float,
    rates: Rates,
    *,
    num_matrices: float = 1.0,
    rate_factor: float = 1.0,
) -> ProductTimes:
    """Time the products of `num_rows` rows with matrices of some shapes.

    Parameters
    ----------
    shapes : tuple of (N, K)
        Of each matrix.
    num_rows : float
        In all.
    rates : Rates
        What the device sustains.
    num_matrices : float
        Of each shape, which share out the rows, as experts do.
    rate_factor : float
        On the rate of operations.
    """
    total = ProductTimes(0.0, 0.0, 0.0)
    for outputs, inputs in shapes:
        aligned = outputs % _ALIGNMENT == 0 and inputs % _ALIGNMENT == 0
        rate = rates.layer_gemm_flops_per_s * (1.0 if aligned else rates.unaligned_gemm) * rate_factor
        seconds = 2 * num_rows * outputs * inputs / rate
        weights = num_matrices * outputs * inputs
        total += _moved(num_rows * outputs, num_rows * inputs, weights, rates, seconds)
    return total


def _moved(outputs: float, inputs: float, weights: float, rates: Rates, seconds: float) -> ProductTimes:
    """Add what values of outputs, inputs and weights take to move and to quantise."""
    forward, input_gradient, weight_gradient = (
        rates.quantise_bytes * inputs,
        rates.quantise_bytes * outputs,
        0.0,
    )
    if (read := rates.operand_bytes) is not None:
        forward += read * (inputs + weights) + _RESULT_BYTES * outputs
        input_gradient += read * (outputs + weights) + _RESULT_BYTES * inputs
        weight_gradient += read * (outputs + inputs) + _GRADIENT_BYTES * weights
    moved = (nbytes / rates.memory_bytes_per_s for nbytes in (forward, input_gradient, weight_gradient))
    return ProductTimes(*(seconds + extra for extra in moved))
