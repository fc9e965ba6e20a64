"""Matrix products with weights that stay quantised in memory: FP8 by rows and NVFP4 by groups, decoded as they are used.

An E4M3 code, and an E2M1 value times its E4M3 group scale, have few enough significant bits to be exact in BF16. So a
product is BF16 with exactly decoded weights, and the scale of a whole row (F32, or F16 for NVFP4) multiplies its result.
Nothing decoded outlives the call. Nothing waits for a device, so that the same calls can be captured in a CUDA graph.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - its customary name

from adapters.qwen3_5_moe.shape import GROUP

FP8_ROWS = 4096
"""Rows of an FP8 weight decoded at a time, which bounds the memory that a product takes besides its operands."""


def e2m1_pairs(device: torch.device) -> torch.Tensor:
    """The two BF16 values of every packed byte, I32 [256]; the low half word is the low nibble's, the even element.

    E2M1 magnitudes are {0, .5, 1, 1.5, 2, 3, 4, 6} for codes 0 to 7 and bit 3 is the sign (OCP Microscaling Formats 1.0,
    section 5.3.3). Computed where it is used, since a table that stays would be state that no plan names.
    """
    byte = torch.arange(256, device=device, dtype=torch.int64)
    return (_e2m1_bits(byte & 15) | _e2m1_bits(byte >> 4) << 16).to(torch.int32)


def _e2m1_bits(code: torch.Tensor) -> torch.Tensor:
    """BF16 bits of E2M1 codes: from code 1 on, magnitudes are half a BF16 exponent step apart but for the first."""
    magnitude = code & 7
    bits = torch.where(magnitude >= 2, 0x3F00 + magnitude * 0x40, (magnitude == 1) * 0x3F00)
    return bits | (code >> 3) << 15


def decode_nvfp4(packed: torch.Tensor, scale: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
    """BF16 [..., rows, columns], exactly e2m1 * group scale, from U8 [..., rows, columns / 2] and F8_E4M3 scales."""
    values = pairs.index_select(0, packed.reshape(-1).to(torch.int32)).view(torch.bfloat16)
    groups = values.view(*scale.shape, GROUP)
    groups.mul_(scale.to(torch.bfloat16).unsqueeze(-1))
    return groups.view(*packed.shape[:-1], packed.shape[-1] * 2)


def nvfp4_linear(
    x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor, row_global: torch.Tensor, pairs: torch.Tensor
) -> torch.Tensor:
    """x BF16 [tokens, columns] by an NVFP4 weight of [rows, columns] with F16 row globals: BF16 [tokens, rows]."""
    product = F.linear(x, decode_nvfp4(packed, scale, pairs))
    return (product.float() * row_global.float()).to(torch.bfloat16)


def fp8_linear(x: torch.Tensor, weight: torch.Tensor, row_scale: torch.Tensor) -> torch.Tensor:
    """x BF16 [tokens, columns] by an FP8 weight of [rows, columns] with F32 row scales: BF16 [tokens, rows].

    Activations stay BF16, so the layout's input scale takes no part.
    """
    products = [F.linear(x, part.to(torch.bfloat16)) for part in weight.split(FP8_ROWS)]
    return (torch.cat(products, dim=-1).float() * row_scale).to(torch.bfloat16)
