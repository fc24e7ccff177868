# SPDX-License-Identifier: Apache-2.0
"""How q, K and V are quantised, by the interface's numbers."""

from __future__ import annotations

import enum


class QuantType(enum.IntEnum):
    """What one scale belongs to. Calls take a member or its number."""

    QPERTOKEN_PERHEAD_KPERTOKEN_PERHEAD_VPERHEAD = 0
    QPERTOKEN_PERHEAD_KPERTENSOR_VPERTENSOR = 1
    QPERTENSOR_KPERTENSOR_VPERTENSOR = 2
    QPERTOKEN_PERHEAD_KPERTOKEN_PERHEAD_VPERHEAD_QKHADAMARD = 3


def quant_type_of(op: str, argument: str, value: object, allowed: tuple[int, ...]) -> QuantType:
    """The member that a caller means.

    Args:
        op: The call, which begins a message.
        argument: Name of the argument.
        value: A QuantType, a member of another enum with its number, or the number.
        allowed: Numbers that this call serves.

    Raises:
        ValueError: No such number.
        NotImplementedError: A number that this call does not serve.
    """
    number = getattr(value, "value", value)
    if not isinstance(number, int) or number not in {int(kind) for kind in QuantType}:
        known = ", ".join(f"{int(kind)} ({kind.name})" for kind in QuantType)
        raise ValueError(f"{op}: {argument} is {value!r}, expected one of {known}.")
    kind = QuantType(number)
    if number not in allowed:
        served = " or ".join(map(str, allowed))
        raise NotImplementedError(
            f"{op}: {argument} is {number} ({kind.name}), served are {served}."
        )
    return kind
