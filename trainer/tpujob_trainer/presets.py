"""The model's configuration, and well-known models as values of it."""

from __future__ import annotations

import dataclasses

from tpujob_trainer.fields import setting

PRESET_NAMES = ("tiny", "demo", "125m", "350m", "1b", "llama3-8b", "llama3-70b", "llama3-405b")


@dataclasses.dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes of the decoder-only transformer, and how it is computed.

    The defaults are those of ``tiny``; a configuration starts from its preset.
    """

    preset: str = setting("tiny", choices=PRESET_NAMES)
    d_model: int = setting(64, at_least=1, key="dModel")
    layers: int = setting(2, at_least=1)
    heads: int = setting(4, at_least=1)
    kv_heads: int = setting(2, at_least=1, key="kvHeads")
    d_ff: int = setting(192, at_least=1, key="dFF")
    vocab: int = setting(256, at_least=256)  # tokens may be bytes
    rope_theta: float = setting(10_000.0, above=1.0, key="ropeTheta")
    tied_embeddings: bool = setting(default=False, key="tiedEmbeddings")
    precision: str = setting("auto", choices=("auto", "float32", "bfloat16", "int8"))
    attention: str = setting("auto", choices=("auto", "splash", "cudnn", "xla"))
    remat: str = setting("none", choices=("none", "dots", "full", "offload"))
    scan_layers: bool = setting(default=False, key="scanLayers")
    loss_chunk: int = setting(0, at_least=0, key="lossChunk")  # positions of a row; 0: by size

    @property
    def d_head(self) -> int:
        """Width of one attention head."""
        return self.d_model // self.heads


_LLAMA3 = ModelConfig(kv_heads=8, vocab=128_256, rope_theta=500_000.0)

PRESETS: dict[str, ModelConfig] = {
    model.preset: model
    for model in (
        ModelConfig(),
        # One layer: with 16 forced devices on 2 cores, a step is all collectives (docs/trainer.md).
        ModelConfig("demo", layers=1),
        ModelConfig("125m", 768, 12, 12, 12, 2048, 32_768),
        ModelConfig("350m", 1024, 24, 16, 16, 2816, 32_768),
        ModelConfig("1b", 2048, 24, 16, 16, 5632, 32_768),
        dataclasses.replace(
            _LLAMA3, preset="llama3-8b", d_model=4096, layers=32, heads=32, d_ff=14_336
        ),
        dataclasses.replace(
            _LLAMA3, preset="llama3-70b", d_model=8192, layers=80, heads=64, d_ff=28_672
        ),
        dataclasses.replace(
            _LLAMA3, preset="llama3-405b", d_model=16_384, layers=126, heads=128, d_ff=53_248
        ),
    )
}
