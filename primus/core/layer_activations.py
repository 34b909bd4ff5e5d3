"""What one layer keeps of a token for its backward, and what the backward holds besides: `LayerBytes` is the name to use.

Tensor by tensor, as an accelerator's kernels keep them. `narrow` are the bytes of a number of the compute dtype, `wide` those
of statistics and of what norms read, which is at least fp32.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from primus.engine.config.model import GATED_ACTIVATIONS, ModelConfig
from primus.engine.config.ssm import SCAN_CHUNK

__all__ = ["Adapted", "LayerBytes"]


@dataclass(frozen=True, slots=True)
class Adapted:
    """What is trained beside frozen weights."""

    linears: Mapping[str, int]
    """Outputs of the whole model's linears that have an adapter, by name."""
    dim: int
    """Rank of the adapters."""
    rescales: bool
    """Outputs are multiplied by learned factors (DoRA)."""
    drops: Literal["pre", "post"] | None = None
    """What adapters drop some of: what A reads, or what B gives."""
    inputs: Mapping[str, int] = field(default_factory=dict)
    """Those of the same linears, where A reads less of them."""


@dataclass(frozen=True, slots=True)
class _Token:
    """Bytes of a token."""

    whole: int = 0
    """Of the residual stream and what all ranks hold of it; under sequence parallelism each has some of the tokens."""
    divided: int = 0
    """Of what tensor-parallel ranks divide."""

    def __add__(self, other: "_Token") -> "_Token":
        return _Token(self.whole + other.whole, self.divided + other.divided)


class LayerBytes:
    """Bytes of a token in the layers of a model on one rank."""

    def __init__(self, model: ModelConfig, narrow: int, micro_batch_size: int, adapted: Adapted | None) -> None:
        """`adapted` None: all weights are trained."""
        self.model, self.narrow, self.micro_batch_size, self.adapted = model, narrow, micro_batch_size, adapted
        self._sparse_layers = frozenset(model.moe.layers)
        self._rescaled_outputs: Counter[int] = Counter()
        self._dropped: defaultdict[int, _Token] = defaultdict(_Token)
        for name, outputs in ({} if adapted is None else adapted.linears).items():
            if name.startswith("decoder.") and ".experts." not in name:
                number = int(name.split(".")[2])
                self._rescaled_outputs[number] += outputs
                self._dropped[number] += self._marks(name, outputs)

    @property
    def wide(self) -> int:
        """Bytes of a number in at least fp32."""
        return max(4, self.narrow)

    @property
    def stream(self) -> int:
        """Return what the residual stream takes between two layers."""
        residual = self.wide if self.model.fp32_residual_connection else self.narrow
        return self._on_rank(_Token(whole=residual * self.model.hidden_size))

    def kept(self, number: int) -> int:
        """Return what layer `number` keeps."""
        return self._on_rank(self._mixing(number) + self._feed_forward(number) + self._rescaled(number) + self._dropped[number])

    def normed(self) -> int:
        """Return what a norm before a weight keeps: what it reads, and what the weight does."""
        return self._on_rank(_Token(whole=(self.wide + self.narrow) * self.model.hidden_size))

    def beside(self, number: int) -> int:
        """Return the most that a backward through layer `number` holds beside what was kept."""
        model, h = self.model, self.model.hidden_size
        most = [self._on_rank(_Token(whole=4 * self.wide * h))]  # of a norm
        kind = model.blocks.feed_forward_of(number)
        if kind == "mlp" and number in self._sparse_layers:
            most.append(self._on_rank(self._replayed_experts() + self._expert_gradients()))
        elif kind == "mlp":
            most.append(self._on_rank(self._mlp_gradients(number)))
        if model.blocks.mixing_of(number) == "attention":
            # By then what the other half kept is gone.
            most.append(self._on_rank(self._attention_gradients()) - self._on_rank(self._feed_forward(number)))
        return max(most)

    def core_attention(self) -> int:
        """Return what core attention keeps, its output included."""
        q, k, v = self._heads()
        return self._on_rank(_Token(divided=self.narrow * (q + k + v + self._context())))

    def _on_rank(self, token: _Token) -> int:
        parallel = self.model.parallel
        ranks = parallel.tensor_model_parallel_size
        return token.whole // (ranks if parallel.sequence_parallel else 1) + token.divided // ranks

    def _reads(self, number: int, *names: str) -> bool:
        """Tell whether a linear of layer `number` needs its input for a gradient: frozen ones without adapter do not."""
        return self.adapted is None or any(f"decoder.layers.{number}.{name}" in self.adapted.linears for name in names)

    def _rescaled(self, number: int) -> _Token:
        """Return what adapted linears that are no experts' give before it is rescaled."""
        if self.adapted is None or not self.adapted.rescales:
            return _Token()
        return _Token(divided=self.narrow * self._rescaled_outputs[number])

    def _marks(self, name: str, outputs: int) -> _Token:
        """Return what says which of a linear's numbers were dropped."""
        if self.adapted is None or self.adapted.drops is None:
            return _Token()
        drops_inputs = self.adapted.drops == "pre"
        size = self.narrow * (self.adapted.inputs[name] if drops_inputs else outputs)
        divides_inputs = name.endswith(("linear_proj", "linear_fc2", "out_proj"))
        return _Token(divided=size) if divides_inputs == drops_inputs else _Token(whole=size)

    def _narrow_products(self, number: int, *names: str) -> int:
        """Return what the adapters of linears keep besides: their narrow products, which all ranks hold."""
        if self.adapted is None:
            return 0
        return self.narrow * self.adapted.dim * sum(self._reads(number, name) for name in names)

    def _norm(self, *, is_read: bool) -> int:
        """Return a norm's input and scale, and its output where somebody needs it."""
        return self.model.hidden_size * (self.wide + self.narrow * is_read) + 4

    def _added(self, *, has_norm: bool) -> int:
        """Return what the end of a half keeps: the input of the norm behind it, and which numbers were dropped."""
        h = self.model.hidden_size
        return has_norm * (self.wide * h + 4) + (self.narrow * h if self.model.hidden_dropout else 0)

    def _mixing(self, number: int) -> _Token:
        """Return the half that mixes tokens."""
        model, kind = self.model, self.model.blocks.mixing_of(number)
        if kind == "none":
            return _Token()
        end = _Token(whole=self._added(has_norm=model.post_attention_norm))
        if kind == "attention":
            return end + self._attention(number)
        entries = [f"self_attention.{name}" for name in ("in_proj", "gates_down_proj")] + ["mixer.in_proj"]
        is_read = kind in ("linear", "short_conv") or self._reads(number, *entries)
        begin = _Token(whole=self._norm(is_read=is_read))
        match kind:
            case "mamba":
                return begin + end + self._mamba()
            case "gated_delta":
                return begin + end + self._delta()
            case "kimi_delta":
                # A second norm's output, and what leads to the gates and to the decay.
                second = self.narrow * (model.hidden_size + sum(model.delta.gates_down))
                return begin + end + _Token(whole=second) + self._kimi()
            case "short_conv":
                # Both gates, what they multiply, before and after the convolution, and the output.
                return begin + end + _Token(divided=self.narrow * 6 * model.hidden_size)
        return begin + end

    def _attention(self, number: int) -> _Token:
        model, attention, mla = self.model, self.model.attention, self.model.attention.mla
        firsts = ("linear_qkv", "linear_q_proj", "linear_q_down_proj", "linear_kv_down_proj")
        entries = tuple(f"self_attention.{name}" for name in firsts)
        ups = tuple(f"self_attention.{name}" for name in ("linear_q_up_proj", "linear_kv_up_proj"))
        whole = self._norm(is_read=self._reads(number, *entries))
        whole += self._narrow_products(number, *entries, *ups, "self_attention.linear_proj")
        divided = self.narrow * self._context() + 4 * attention.num_attention_heads + self._scores()
        if mla.enabled:
            # Values are views of what the unrotated keys are copied from.
            keys_and_values = attention.num_attention_heads * (mla.qk_head_dim + mla.v_head_dim)
            divided += self.narrow * (2 * attention.num_attention_heads * mla.score_channels + keys_and_values)
            latents = mla.kv_lora_rank + (mla.q_lora_rank or 0)
            whole += self.narrow * (latents + mla.qk_pos_emb_head_dim) + (self.wide * latents if self._norms_heads else 0)
        else:
            divided += self._heads_bytes()
        if attention.output_gate:
            # Its sigmoid, and what that is multiplied with.
            divided += 2 * self.narrow * self._context()
        # A slice keeps keys and values of those before it: on average of half.
        _, k, v = self._heads()
        divided += self.narrow * (k + v) * (model.pipeline.num_slices - 1) // 2
        return _Token(whole, divided)

    @property
    def _norms_heads(self) -> bool:
        return self.model.attention.qk_norm != "none"

    def _heads_bytes(self) -> int:
        """Return queries, keys and values as projected and as core attention takes them."""
        attention, (q, k, v) = self.model.attention, self._heads()
        rotates = self.model.position.type in ("rope", "yarn")
        is_grouped = attention.num_query_groups < attention.num_attention_heads
        if self.narrow >= 4 and is_grouped and not self._scores():
            # The kernel for wide numbers takes keys and values of every query head.
            given = self.narrow * 3 * q
            return given + (self.narrow * (q + k) if self._norms_heads or attention.output_gate else 0)
        # The projection stays whole for its values. Heads that turn are copies, and so are queries by group.
        queries = q * (1 + attention.output_gate)
        copies = q * (rotates or is_grouped or self._norms_heads) + k * (rotates or self._norms_heads)
        read_by_norms = self.wide * (q + k) if self._norms_heads and self.narrow < self.wide else 0
        return self.narrow * (queries + k + v + copies) + read_by_norms

    def _heads(self) -> tuple[int, int, int]:
        """Return the numbers of queries, keys and values, over all tensor-parallel ranks."""
        attention, mla = self.model.attention, self.model.attention.mla
        if mla.enabled:
            scored = attention.num_attention_heads * mla.score_channels
            return scored, scored, attention.num_attention_heads * mla.v_head_dim
        # Ranks that share a group have its keys and values each.
        keys = max(attention.num_query_groups, self.model.parallel.tensor_model_parallel_size) * attention.kv_channels
        return attention.num_attention_heads * attention.kv_channels, keys, keys

    def _context(self) -> int:
        """Return the numbers of the heads' output, over all tensor-parallel ranks."""
        attention, mla = self.model.attention, self.model.attention.mla
        return attention.num_attention_heads * (mla.v_head_dim if mla.enabled else attention.kv_channels)

    def _scores(self) -> int:
        """Return what attention by the formula keeps of a token's scores: probabilities, and what is masked."""
        attention = self.model.attention
        if attention.backend not in ("unfused", "local") or self.model.recompute.granularity == "selective":
            return 0
        is_wide = self.narrow < 4 and (attention.softmax_in_fp32 or attention.query_key_layer_scaling)
        each = self.narrow + self.wide * is_wide
        mask = self.model.parallel.tensor_model_parallel_size // self.micro_batch_size
        return self.model.seq_length * (attention.num_attention_heads * each + mask)

    def _attention_gradients(self) -> _Token:
        """Return the gradients of the heads' output and of queries, keys and values, and of scores by the formula."""
        attention, (q, k, v) = self.model.attention, self._heads()
        divided = self.narrow * (self._context() + 2 * (q + k + v))
        if attention.backend in ("unfused", "local"):
            replayed = 1 + (self.model.recompute.granularity == "selective")
            divided += (1 + replayed) * self.narrow * attention.num_attention_heads * self.model.seq_length
        return _Token(whole=self.narrow * self.model.hidden_size, divided=divided)

    def _feed_forward(self, number: int) -> _Token:
        """Return the other half."""
        model, kind = self.model, self.model.blocks.feed_forward_of(number)
        if kind == "none":
            return _Token()
        end = _Token(whole=self._added(has_norm=model.post_mlp_norm))
        if kind == "linear":
            return end + _Token(whole=self._norm(is_read=True))
        if number not in self._sparse_layers:
            begin = _Token(whole=self._norm(is_read=self._reads(number, "mlp.linear_fc1")))
            return begin + end + self._mlp(number, "mlp", model.ffn_width(number))
        if model.recompute.experts:
            return end + _Token(whole=self._norm(is_read=True))
        is_read = self.adapted is None or self._reads(number, "mlp.shared_experts.linear_fc1")
        return _Token(whole=self._norm(is_read=is_read)) + end + self._sparse(number)

    def _mlp(self, number: int, prefix: str, width: int) -> _Token:
        """Return both sides of an activation; what goes into a frozen matrix is not kept."""
        halves, fc1, fc2 = self._halves, f"{prefix}.linear_fc1", f"{prefix}.linear_fc2"
        products = self._narrow_products(number, fc1, fc2)
        return _Token(products, self.narrow * width * (halves + self._reads(number, fc2)))

    def _sparse(self, number: int) -> _Token:
        m = self.model.moe
        total = self._experts(number)
        if m.shared_expert_intermediate_size is not None:
            total += self._mlp(number, "mlp.shared_experts", m.shared_expert_intermediate_size)
            # What the gate is multiplied with.
            total += _Token(whole=self.narrow * self.model.hidden_size * m.shared_expert_gate)
        return total

    def _experts(self, number: int) -> _Token:
        """Return a row for each of a token's experts; what comes out of the activation is computed again."""
        m, h = self.model.moe, self.model.hidden_size
        assert m.num_experts is not None
        fc1, fc2 = "mlp.experts.linear_fc1", "mlp.experts.linear_fc2"
        # Ranks that share an expert all have the row.
        row = self.narrow * (h * self._sharers * self._reads(number, fc1) + self._halves * self._expert_width)
        row += self._narrow_products(number, fc1, fc2) + self._varied_rows(number, fc1, fc2)
        # Its choice, place in the order and weight; and scores of all experts.
        return _Token(whole=m.router_topk * (row + 32) + 4 * m.num_experts)

    def _varied_rows(self, number: int, fc1: str, fc2: str) -> int:
        """Return what adapters of experts keep of a row besides: sums before they are rescaled, and a byte for each mark."""
        adapted, h, width = self.adapted, self.model.hidden_size * self._sharers, self._expert_width
        if adapted is None:
            return 0
        first, last = self._reads(number, fc1), self._reads(number, fc2)
        results, inputs = self._halves * width * first + h * last, h * first + width * last
        marks = {None: 0, "pre": inputs, "post": results}[adapted.drops]
        return self.narrow * results * adapted.rescales + marks

    def _replayed_experts(self) -> _Token:
        return self._experts(self.model.moe.layers[0]) if self.model.recompute.experts else _Token()

    def _mlp_gradients(self, number: int) -> _Token:
        """Return what an activation's backward holds: gradients of both sides and a temporary."""
        width = self.model.ffn_width(number)
        return _Token(whole=2 * self.narrow * self.model.hidden_size, divided=self.narrow * width * (2 * self._halves - 1))

    def _expert_gradients(self) -> _Token:
        """Return the same of rows: their gradients on both sides, of both sides of the activation, and a temporary."""
        width = self._expert_width * (2 * self._halves + 1)
        return _Token(whole=self.model.moe.router_topk * self.narrow * (2 * self.model.hidden_size * self._sharers + width))

    @property
    def _halves(self) -> int:
        return 2 if self.model.activation in GATED_ACTIVATIONS else 1

    @property
    def _sharers(self) -> int:
        """Ranks that share an expert's matrices."""
        parallel = self.model.parallel
        return parallel.expert_tensor_parallel_size or parallel.tensor_model_parallel_size

    @property
    def _expert_width(self) -> int:
        return self.model.moe.ffn_hidden_size or self.model.ffn_hidden_size

    def _mamba(self) -> _Token:
        """Return what a mixer keeps.

        The convolution's input, output and what silu makes of it, and the output; in fp32 the inputs of the products of the
        scan and of what follows it, what stands between tokens of a chunk, and the states of chunks.
        """
        m = self.model.mamba
        maps, pairs = m.num_groups * m.state_dim, (2 * m.num_heads + m.num_groups) * SCAN_CHUNK
        states = 2 * m.num_heads * m.state_dim * m.head_dim // SCAN_CHUNK
        in_fp32 = 10 * m.width + 4 * maps + states + pairs + 4 * m.num_heads
        return _Token(divided=self.narrow * (3 * sum(m.blocks[1:4]) + m.width) + self.wide * in_fp32)

    def _delta(self) -> _Token:
        """Return what a gated delta net keeps.

        The convolution's input, output and what silu makes of it, and the output; in fp32 queries and keys for each value head
        as they come, of unit length, decayed and in the triangular system, values likewise, pairs of a chunk, and states.
        """
        d = self.model.delta
        keys, pairs = d.num_value_heads * d.key_head_dim, 5 * d.num_value_heads * SCAN_CHUNK
        states = 2 * keys * d.value_head_dim // SCAN_CHUNK
        in_fp32 = 10 * keys + 10 * d.values + states + pairs + 6 * d.num_value_heads
        return _Token(divided=self.narrow * (3 * sum(d.read) + d.values) + self.wide * in_fp32)

    def _kimi(self) -> _Token:
        """Return what Kimi delta attention keeps.

        As a gated delta net, but decays have channels, too, and for each halving of a chunk the later half keeps queries, keys
        and decays anew, and the earlier one keys and decays.
        """
        d = self.model.delta
        keys = (12 + 5 * (SCAN_CHUNK.bit_length() - 1) // 2) * d.decays
        pairs, states = 3 * d.num_value_heads * SCAN_CHUNK, 2 * d.decays * d.value_head_dim // SCAN_CHUNK
        in_fp32 = keys + 5 * d.values + states + pairs + 6 * d.num_value_heads
        return _Token(divided=self.narrow * (3 * sum(d.read) + 2 * d.values) + self.wide * in_fp32)
