"""Train the weights of a memory while it reads, on the text itself, by gradient steps with momentum and decay.

Titans (Behrouz et al., 2024, arXiv:2501.00663): a token with key k and value v has the loss ||M(k) - v||^2. Its
gradient changes the momentum, S_t = eta_t S_{t-1} - theta_t grad, and this changes the weights,
M_t = (1 - alpha_t) M_{t-1} + S_t. The token reads M_t(q). The gradients of a chunk are all taken at the weights at the
chunk's start. So both recurrences are linear in the chunk, and are computed for all its tokens at once: the gradient of
each matrix is an outer product, and what a token reads is a weighted sum over the tokens before it, as in linear
attention. Nothing is divided by a product of decays.

Shape suffixes: B batch, T tokens, D model width, H heads, N = B * H, C width of a head, P matrices.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whet.models.memory_bank.bank import without_autocast
from whet.models.memory_bank.config import LtmConfig


@dataclass
class TestTimeState:
    """Hold the weights of a test-time memory.

    Attributes:
        start_BHPCC: The weights at the chunk's start, at which gradients are taken.
        now_BHPCC: The weights after the last token.
        momentum_BHPCC: The momentum after the last token.
    """

    __test__ = False  # pytest would take it for a class of tests

    start_BHPCC: Tensor
    now_BHPCC: Tensor
    momentum_BHPCC: Tensor


@dataclass(frozen=True)
class Rates:
    """Hold the rates of each token, [N, T] each.

    Attributes:
        step: The step size theta.
        log_momentum: The logarithm of eta.
        log_kept: The logarithm of 1 - alpha.
    """

    step: Tensor
    log_momentum: Tensor
    log_kept: Tensor

    def part(self, begin: int, end: int) -> "Rates":
        return Rates(*(rate[:, begin:end] for rate in (self.step, self.log_momentum, self.log_kept)))


@dataclass(frozen=True)
class Weights:
    """Hold the matrices [N, P, C, C] of a memory; x @ matrix is a layer. P is 1, or 2 for an MLP."""

    start: Tensor
    now: Tensor
    momentum: Tensor


class TestTimeMemory(nn.Module):
    """Read a memory that learns each token: [B, T, D] -> [B, T, D]."""

    __test__ = False

    def __init__(self, config: LtmConfig) -> None:
        super().__init__()
        D, C = config.hidden_size, config.memory_width
        self.heads, self.chunk, self.clip = config.test_time_heads, config.test_time_chunk, config.test_time_clip
        self.num_matrices = 2 if config.test_time_memory == "mlp" else 1
        self.q_proj = nn.Linear(D, C, bias=False)
        self.k_proj = nn.Linear(D, C, bias=False)
        self.v_proj = nn.Linear(D, C, bias=False)
        self.o_proj = nn.Linear(C, D, bias=False)
        self.rates = nn.Linear(D, 3 * self.heads)
        self.read_gate = nn.Linear(D, 1)
        width = C // self.heads
        self.weights = nn.Parameter(torch.empty(self.heads, self.num_matrices, width, width))
        self.norm = nn.Parameter(torch.ones(width)) if self.num_matrices == 2 else None
        if not self.weights.is_meta:
            self.initialise(None)

    @torch.no_grad()
    def initialise(self, generator: torch.Generator | None) -> None:
        """Draw new weights. Rates begin with a step of 0.1, a momentum of 0.3 and a decay of 0.002."""
        for linear in (self.q_proj, self.k_proj, self.v_proj, self.o_proj):
            nn.init.normal_(linear.weight, std=1 / math.sqrt(linear.in_features), generator=generator)
        self.o_proj.weight.mul_(0.5)
        nn.init.normal_(self.rates.weight, std=0.02, generator=generator)
        for part, value in zip(self.rates.bias.view(3, self.heads), (0.1, 0.3, 0.002), strict=True):
            part.fill_(math.log(value / (1 - value)))
        nn.init.normal_(self.read_gate.weight, std=0.02, generator=generator)
        nn.init.zeros_(self.read_gate.bias)
        std = 1 / math.sqrt(self.weights.shape[-1]) if self.num_matrices == 2 else 0.02
        nn.init.normal_(self.weights, std=std, generator=generator)

    def new_state(self, batch_size: int, dtype: torch.dtype) -> TestTimeState:
        """Return the memory before the first token: its learned first weights, and no momentum."""
        first = self.weights.to(dtype).expand(batch_size, *self.weights.shape)
        return TestTimeState(first, first, torch.zeros_like(first))

    def forward(self, h_BTD: Tensor, state: TestTimeState, offset: int = 0) -> tuple[Tensor, TestTimeState]:
        """Read tokens, and update the memory by them.

        Args:
            h_BTD: The normalised input.
            offset: The tokens that were read before, of which the rest by the chunk's size are in the chunk.

        Returns:
            What is read, projected and gated [B, T, D], and the memory after the last token.
        """
        B, T, _ = h_BTD.shape
        wide = state.now_BHPCC.dtype
        q, k, v = (self._heads(linear(h_BTD).to(wide)) for linear in (self.q_proj, self.k_proj, self.v_proj))
        logits = self.rates(h_BTD).to(wide).view(B, T, 3, self.heads).permute(2, 0, 3, 1).flatten(1, 2)
        with without_autocast(h_BTD.device):  # what lasts for long is not rounded
            y_NTC, after = self._through(q, k, v, logits, state, offset)
        read_BTC = y_NTC.unflatten(0, (B, self.heads)).transpose(1, 2).flatten(2)
        read_BTD = self.o_proj(read_BTC.to(h_BTD.dtype)) * torch.sigmoid(self.read_gate(h_BTD))
        return read_BTD, after

    def _through(
        self, q: Tensor, k: Tensor, v: Tensor, logits_3NT: Tensor, state: TestTimeState, offset: int
    ) -> tuple[Tensor, TestTimeState]:
        """Return what is read [N, T, C], and the memory after the last token, chunk after chunk. See forward."""
        q, k = F.normalize(q, dim=-1, eps=1e-6), F.normalize(k, dim=-1, eps=1e-6)
        step, momentum, decay = logits_3NT
        rates = Rates(torch.sigmoid(step), F.logsigmoid(momentum), F.logsigmoid(-decay))
        found = Weights(*(part.flatten(0, 1) for part in (state.start_BHPCC, state.now_BHPCC, state.momentum_BHPCC)))
        norm = None if self.norm is None else self.norm.to(q.dtype)
        T, outputs, begin = q.shape[1], [], 0
        while begin < T:
            in_chunk = (offset + begin) % self.chunk
            if in_chunk == 0:
                found = Weights(found.now, found.now, found.momentum)
            end = min(T, begin + self.chunk - in_chunk)
            tokens = (q[:, begin:end], k[:, begin:end], v[:, begin:end])
            y_NTC, found = read_and_learn(found, *tokens, rates.part(begin, end), norm, self.clip)
            outputs.append(y_NTC)
            begin = end
        parts = (part.unflatten(0, (-1, self.heads)) for part in (found.start, found.now, found.momentum))
        return torch.cat(outputs, 1), TestTimeState(*parts)

    def _heads(self, x_BTC: Tensor) -> Tensor:
        x_BTHC: Tensor = x_BTC.unflatten(-1, (self.heads, -1))
        return x_BTHC.transpose(1, 2).flatten(0, 1)


def read_and_learn(
    weights: Weights, q_NTC: Tensor, k_NTC: Tensor, v_NTC: Tensor, rates: Rates, norm_C: Tensor | None, clip: float
) -> tuple[Tensor, Weights]:
    """Update a memory by the tokens of one chunk, and read it after each of them.

    Args:
        norm_C: The weights of the layer norm of an MLP; None for a linear memory.
        clip: The norm that a token's gradient is cut to.

    Returns:
        What is read [N, T, C], and the memory after the last token.
    """
    inputs, errors = gradients(weights.start, k_NTC, v_NTC, norm_C)
    squares = sum(x.square().sum(-1) * e.square().sum(-1) for x, e in zip(inputs, errors, strict=True))
    assert isinstance(squares, Tensor)
    cut_NT = clip / squares.clamp(min=clip**2).sqrt()  # 1 for a gradient of 0, and never NaN
    errors = [error * (rates.step * cut_NT)[..., None] for error in errors]
    momentum_NTT, kept_NTT = _products(rates.log_momentum), _products(rates.log_kept)
    mixed_NTT = kept_NTT @ momentum_NTT
    first_momentum_NT = rates.log_momentum.cumsum(-1).exp()
    first_NT = rates.log_kept.cumsum(-1).exp()
    pushed_NT = (kept_NTT @ first_momentum_NT[..., None])[..., 0]

    def layer(index: int, x_NTC: Tensor) -> Tensor:
        """Multiply each token by the matrix after that token."""
        old = first_NT[..., None] * (x_NTC @ weights.now[:, index])
        pushed = pushed_NT[..., None] * (x_NTC @ weights.momentum[:, index])
        learned = (x_NTC @ inputs[index].transpose(1, 2) * mixed_NTT) @ errors[index]
        return old + pushed - learned

    read_NTC = layer(0, q_NTC)
    if norm_C is not None:
        read_NTC = q_NTC + norm_C * F.layer_norm(layer(1, F.gelu(read_NTC)), norm_C.shape)
    x_NPTC, e_NPTC = torch.stack(inputs, 1), torch.stack(errors, 1)

    def sums(coefficients_NT: Tensor) -> Tensor:
        return (x_NPTC * coefficients_NT[:, None, :, None]).transpose(-2, -1) @ e_NPTC

    last = (slice(None), -1, None, None, None)
    momentum = first_momentum_NT[last] * weights.momentum - sums(momentum_NTT[:, -1])
    now = first_NT[last] * weights.now + pushed_NT[last] * weights.momentum - sums(mixed_NTT[:, -1])
    return read_NTC, Weights(weights.start, now, momentum)


def gradients(
    matrices_NPCC: Tensor, k_NTC: Tensor, v_NTC: Tensor, norm_C: Tensor | None
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the factors x and e of each matrix' gradient, x^T e for a token, [N, T, C] each.

    The loss is the squared distance of M(k) from v. A linear memory is k W. An MLP is k + norm * LN(gelu(k W1) W2).
    """
    hidden = k_NTC @ matrices_NPCC[:, 0]
    if norm_C is None:
        return [k_NTC], [2 * (hidden - v_NTC)]
    active = F.gelu(hidden)
    output = active @ matrices_NPCC[:, 1]
    centred = output - output.mean(-1, keepdim=True)
    scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5)
    normed = centred * scale
    d_normed = 2 * (k_NTC + norm_C * normed - v_NTC) * norm_C
    along = (d_normed * normed).mean(-1, keepdim=True)
    d_output = (d_normed - d_normed.mean(-1, keepdim=True) - normed * along) * scale
    bell = torch.exp(-hidden.square() / 2) / math.sqrt(2 * math.pi)
    slope = 0.5 * (1 + torch.erf(hidden / math.sqrt(2))) + hidden * bell  # the derivative of gelu
    d_hidden = d_output @ matrices_NPCC[:, 1].transpose(-2, -1) * slope
    return [k_NTC, active], [d_hidden, d_output]


def _products(logs_NT: Tensor) -> Tensor:
    """Return the product of the factors after token i up to token t, [N, t, i], 0 where i is after t.

    The logarithms are summed for each pair on its own, so that nothing cancels, and the mask comes before exp.
    """
    T = logs_NT.shape[-1]
    earlier = torch.ones(T, T, dtype=torch.bool, device=logs_NT.device).tril(-1)
    sums = logs_NT[..., None].expand(*logs_NT.shape, T).masked_fill(~earlier, 0).cumsum(-2)
    return sums.masked_fill(~(earlier | torch.eye(T, dtype=torch.bool, device=logs_NT.device)), -torch.inf).exp()
