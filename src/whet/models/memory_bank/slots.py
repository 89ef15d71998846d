"""Keep account of the slots of banks: say how they are used, clear, remove and merge them, and add new ones.

A sequence may have fewer slots than the bank is wide; the rest of its row is marked by the id -1. What happens to the
slots of a sequence depends on that sequence alone.

Shape suffixes: B batch, S slots, C slot width.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from whet.errors import OptionError
from whet.models.memory_bank.bank import NEVER, BankState
from whet.models.memory_bank.config import LtmConfig
from whet.models.memory_bank.state import LtmState

GROWS_ABOVE = 0.9  # of utilisation, where compression adapts the number of slots


def memory_stats(state: LtmState) -> dict[str, Any]:
    """Return how the banks of a state are used.

    Returns:
        slots: The slots of a sequence, mean over sequences and layers.
        written: The part of them that hold something.
        utilization: The effective part of them that is read: exp(entropy of the usage) over the number of slots; 0
            where nothing has been read yet.
        mean_age: The spans since their contents were written, on average.
        bytes: The bytes of the banks; state_bytes those of the whole state.
        layers: The same for each layer with a bank, with usage and age of every slot, [B, S].
    """
    layers = [_bank_stats(bank) for bank in state.banks]
    keys = ("slots", "written", "utilization", "mean_age")
    found: dict[str, Any] = {key: math.fsum(one[key] for one in layers) / max(1, len(layers)) for key in keys}
    found["bytes"] = sum(one["bytes"] for one in layers)
    return {**found, "state_bytes": state.num_bytes, "num_tokens": state.num_tokens, "layers": layers}


def _bank_stats(bank: BankState) -> dict[str, Any]:
    is_there = bank.ids_BS >= 0
    num = is_there.sum(-1)
    ages = torch.where(bank.weight_BS > 0, bank.ages_BS / bank.weight_BS.clamp(min=1e-12), 0)
    written = (bank.weight_BS > 0) & is_there
    return {
        "slots": float(num.float().mean()),
        "written": float(written.sum() / num.sum().clamp(min=1)),
        "utilization": float(utilization(bank).mean()),
        "mean_age": float(ages.sum() / written.sum().clamp(min=1)),
        "bytes": sum(tensor.nbytes for tensor in vars(bank).values()),
        "usage": bank.usage_BS.clone(),
        "age": ages,
    }


def utilization(bank: BankState) -> Tensor:
    """Return the effective part of the slots that is read, 0 to 1, of each sequence [B]."""
    usage = bank.usage_BS
    total = usage.sum(-1, keepdim=True)
    shares = usage / total.clamp(min=1e-12)
    entropy = -torch.special.xlogy(shares, shares).sum(-1)
    num = (bank.ids_BS >= 0).sum(-1).clamp(min=1)
    return torch.where(total[:, 0] > 0, entropy.exp() / num, 0)


def change_banks(state: LtmState, change: Callable[[BankState], BankState]) -> None:
    changed = [None if layer.bank is None else change(layer.bank) for layer in state.layers]
    for layer, bank in zip(state.layers, changed, strict=True):
        layer.bank = bank


def check_slots(config: LtmConfig, slots: int) -> None:
    """Raise OptionError unless a bank may have so many slots."""
    if not config.memory_slots:
        raise OptionError("the model has no bank; set memory_slots for a new model")
    if not config.min_memory_slots <= slots <= config.max_memory_slots:
        raise OptionError(
            f"{slots} slots are not within min_memory_slots {config.min_memory_slots} and max_memory_slots "
            f"{config.max_memory_slots}"
        )


def kept(bank: BankState, slots: int) -> BankState:
    """Return a bank with the most used slots of each sequence, in their order; the youngest of equally used ones."""
    order = _by_use(bank)[:, :slots].sort(-1).values
    return _picked(bank, order)


def cleared(bank: BankState, slots: int) -> BankState:
    """Return a bank whose least used slots, so many, hold nothing any more. They are written again as others are."""
    least = _by_use(bank)[:, bank.ids_BS.shape[1] - slots :]
    gone = torch.zeros_like(bank.ids_BS, dtype=torch.bool).scatter(1, least, True)
    return _emptied(bank, gone)


def grown(bank: BankState, slots: int, most: int) -> BankState:
    """Return a bank with empty slots added, up to `slots` a sequence. They take the lowest free of `most` queries."""
    return _with_ids(bank, [_more(ids, slots, most) for ids in _ids(bank)])


def compressed(bank: BankState, tolerance: float, least: int) -> BankState:
    """Return a bank in which slots of nearly equal content are merged into one.

    A merged slot holds the mean of its slots, and counts as many in reading. Its content differs from that of each of
    them by at most the tolerance, relative to the norm of the most used one. Equal slots are merged without any change
    of what is read. `least` is the fewest slots that each sequence keeps.
    """
    contents, order = bank.contents_BSC, _by_use(bank)
    merged = BankState(**{name: value.clone() for name, value in vars(bank).items()})
    for row in range(len(order)):
        ids = bank.ids_BS[row]
        spare = int((ids >= 0).sum()) - least
        live = [slot for slot in order[row].tolist() if ids[slot] >= 0 and bank.weight_BS[row, slot] > 0]
        groups: list[list[int]] = []
        for slot in live:
            near = None if spare <= 0 else _near(contents[row], slot, groups, tolerance / 2)
            if near is None:
                groups.append([slot])
            else:
                near.append(slot)
                spare -= 1
        for group in groups:
            if len(group) > 1:
                _merge(merged, row, group)
    return merged if torch.equal(merged.ids_BS, bank.ids_BS) else _with_ids(merged, _ids(merged))


def adapted(bank: BankState, config: LtmConfig) -> BankState:
    """Return a bank after one round of adaptive compression: merged where redundant, grown where all slots are read."""
    merged = compressed(bank, config.compression_tolerance, config.min_memory_slots)
    before, after = (_ids(one) for one in (bank, merged))
    is_full = (utilization(bank) > GROWS_ABOVE).tolist()
    for row, ids in enumerate(after):
        if is_full[row] and len(ids) == len(before[row]):
            after[row] = _more(ids, len(ids) + max(1, len(ids) // 4), config.max_memory_slots)
    return merged if after == _ids(merged) else _with_ids(merged, after)


@torch.no_grad()
def _near(contents_SC: Tensor, slot: int, groups: list[list[int]], radius: float) -> list[int] | None:
    """Return the group whose first slot is near enough, or None."""
    if not groups:
        return None
    firsts = contents_SC[[group[0] for group in groups]]
    away = (firsts - contents_SC[slot]).norm(dim=-1) / firsts.norm(dim=-1).clamp(min=1e-12)
    best = int(away.argmin())
    return groups[best] if float(away[best]) <= radius else None


def _merge(bank: BankState, row: int, group: list[int]) -> None:
    """Merge slots of a sequence into the first, and mark the others as gone."""
    first, gone = group[0], group[1:]
    rows = bank.rows_BSR[row, group]
    copies = 1 + rows[:, -1]
    shares = copies / copies.sum()
    contents, weight = rows[:, :-2] / rows[:, -2:-1], (shares * rows[:, -2]).sum()
    ages = bank.ages_BS[row, group] / rows[:, -2]
    mean = shares @ contents
    bank.rows_BSR[row, first] = torch.cat((mean * weight, weight[None], copies.sum()[None] - 1))
    bank.ages_BS[row, first] = (shares * ages).sum() * weight
    for sums in (bank.usage_BS, bank.mass_BS):
        sums[row, first] = sums[row, group].sum()
    bank.ids_BS[row, gone] = -1


def _by_use(bank: BankState) -> Tensor:
    """Return the slots of each sequence, the most used first: by usage, then by youth. Marked ones are last."""
    ages = bank.ages_BS / bank.weight_BS.clamp(min=1e-12)
    young = ages.argsort(dim=-1, stable=True)
    usage = torch.where(bank.ids_BS >= 0, bank.usage_BS, -1.0).gather(1, young)
    return young.gather(1, usage.argsort(dim=-1, descending=True, stable=True))


def _ids(bank: BankState) -> list[list[int]]:
    return [[number for number in row if number >= 0] for row in bank.ids_BS.tolist()]


def _more(ids: list[int], slots: int, most: int) -> list[int]:
    free = [number for number in range(most) if number not in set(ids)]
    return ids + free[: max(0, slots - len(ids))]


def _with_ids(bank: BankState, wanted: list[list[int]]) -> BankState:
    """Return a bank with these slots of each sequence. Those that it does not have are new and empty."""
    width = max(len(ids) for ids in wanted)
    order, new = torch.zeros(len(wanted), width, dtype=torch.int64), torch.ones(len(wanted), width, dtype=torch.bool)
    ids_BS = torch.full((len(wanted), width), -1)
    for row, ids in enumerate(wanted):
        places = {number: place for place, number in enumerate(bank.ids_BS[row].tolist()) if number >= 0}
        for place, number in enumerate(ids):
            ids_BS[row, place] = number
            if number in places:
                order[row, place], new[row, place] = places[number], False
    found = _emptied(_picked(bank, order.to(bank.ids_BS.device)), new.to(bank.ids_BS.device))
    found.ids_BS = ids_BS.to(bank.ids_BS.device)
    return found


def _picked(bank: BankState, order_BS: Tensor) -> BankState:
    def pick(value: Tensor) -> Tensor:
        index = order_BS if value.dim() == 2 else order_BS[..., None].expand(-1, -1, value.shape[-1])
        return value.gather(1, index)

    return BankState(**{name: pick(value) for name, value in vars(bank).items()})


def _emptied(bank: BankState, gone_BS: Tensor) -> BankState:
    """Return a bank in which some slots hold nothing, and have pooled nothing. They keep their queries."""
    values = {
        name: value.masked_fill(gone_BS if value.dim() == 2 else gone_BS[..., None], NEVER if name == "top_BS" else 0)
        for name, value in vars(bank).items()
    }
    return BankState(**values | {"ids_BS": bank.ids_BS})
