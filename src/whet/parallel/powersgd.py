"""Average gradients as matrices of low rank: PowerSGD with error feedback and warm start (Vogels et al., 2019).

PyTorch's powerSGD_hook calls collectives in the callbacks of others. Gloo runs these on several threads, in another
order on each process, so that they do not match as soon as there are two buckets. Here one thread calls them, in the
order of the gradients. All that is remembered belongs to a parameter, not to a bucket, so that it can be saved: DDP
fills its buckets otherwise in the first step of a run than in later ones.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.futures import Future

Sums = Callable[[Tensor], Future[Tensor]]
"""Sum a vector over processes, in place."""
_LEAST_SAVED = 2  # a matrix whose factors have more than half of its elements is sent whole, as PyTorch's hook does


class PowerSGD:
    """Average gradients over processes, of matrices the part of low rank; the rest is added to the next gradient."""

    def __init__(self, names: Iterable[tuple[str, nn.Parameter]], rank: int, sums: Sums, size: int) -> None:
        """Prepare for the parameters that are trained.

        Args:
            names: Their names, which are the same on all processes.
            rank: The rank of what is sent.
            size: The number of processes.
        """
        self._names = {p: name for name, p in names}
        self._rank, self._sums, self._size = rank, sums, size
        self._errors: dict[str, Tensor] = {}  # [n, m], what this process has not sent yet
        self._factors: dict[str, Tensor] = {}  # [m, r], where the search for the next factors begins

    @torch.no_grad()
    def average(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Average gradients in place. All processes must call this with the same parameters.

        Shapes: m_NM a gradient as a matrix, p_NR and q_MR its factors, m ~ p q'; vectors are sent whole.
        """
        low: list[tuple[str, Tensor, Tensor]] = []
        whole: list[Tensor] = []
        for parameter, gradient in zip(parameters, gradients, strict=True):
            name = self._names[parameter]  # type: ignore[index]
            if (rank := self._rank_of(gradient)) is None:
                whole.append(gradient)
                continue
            m_NM = gradient.flatten(1).to(torch.promote_types(gradient.dtype, torch.float32), copy=True)
            if name in self._errors:
                m_NM += self._errors[name]
            if name not in self._factors:
                self._factors[name] = _drawn(name, m_NM, rank)
            low.append((name, gradient, m_NM))
        waits = None if not whole else self._sums(vector := _joined(whole))
        ps = self._summed([m_NM @ self._factors[name] for name, _, m_NM in low])
        ps = [torch.linalg.qr(p_NR).Q for p_NR in ps]
        qs = self._summed([m_NM.T @ p_NR for (_, _, m_NM), p_NR in zip(low, ps, strict=True)])
        for (name, gradient, m_NM), p_NR, q_MR in zip(low, ps, qs, strict=True):
            self._factors[name] = torch.linalg.qr(q_MR).Q
            sent_NM = p_NR @ (q_MR / self._size).T
            gradient.copy_(sent_NM.view_as(gradient))
            self._errors[name] = m_NM.sub_(sent_NM)
        if waits is not None:
            waits.wait()
            for gradient, found in zip(whole, (vector / self._size).split([g.numel() for g in whole]), strict=True):
                gradient.copy_(found.view_as(gradient))

    def state(self) -> dict[str, Tensor]:
        """Return what this process remembers, by names; nothing is copied."""
        errors = {f"error.{name}": x for name, x in self._errors.items()}
        return errors | {f"factor.{name}": x for name, x in self._factors.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Remember what was saved on this process."""
        devices = {name: p.device for p, name in self._names.items()}
        for kind, into in (("error.", self._errors), ("factor.", self._factors)):
            names = [name.removeprefix(kind) for name in state if name.startswith(kind)]
            into.update({name: state[f"{kind}{name}"].clone().to(devices[name]) for name in names})

    def _rank_of(self, gradient: Tensor) -> int | None:
        """Return the rank that a gradient is sent in; None where it is sent whole."""
        if gradient.dim() < 2:
            return None
        n, m = gradient.shape[0], gradient[0].numel()
        rank = min(n, m, self._rank)
        return rank if (n + m) * rank * _LEAST_SAVED < n * m else None

    def _summed(self, factors: Sequence[Tensor]) -> list[Tensor]:
        if not factors:
            return []
        vector = _joined(factors)
        self._sums(vector).wait()
        found = vector.split([x.numel() for x in factors])
        return [one.view_as(x) for one, x in zip(found, factors, strict=True)]


def _drawn(name: str, m_NM: Tensor, rank: int) -> Tensor:
    """Return the first factor of a parameter, [m, r], the same one on each process."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    drawn = torch.randn(m_NM.shape[1], rank, generator=generator, dtype=m_NM.dtype)
    q_MR: Tensor = torch.linalg.qr(drawn).Q
    return q_MR.to(m_NM.device)


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([x.reshape(-1) for x in tensors])
