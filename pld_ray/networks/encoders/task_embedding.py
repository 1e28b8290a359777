"""What the networks are told of the task: a learned vector, or its instruction's embedding."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from pld_ray.networks.encoders.pooling import vector_encoder

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "vocab.txt",
    "vocab.json",
)


class LearnedTaskEmbedding(nn.Module):
    """One trained vector per task."""

    def __init__(self, num_tasks: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(num_tasks, width)

    def forward(self, task: Tensor) -> Tensor:
        """Task numbers [B] int64 -> [B, width]."""
        return self.table(task)


class TextTaskEmbedding(nn.Module):
    """Frozen embeddings of the instructions, computed once, then Linear + LayerNorm + tanh.

    Args:
        embeddings: [tasks, E].
        width: of the latent.
    """

    embeddings: Tensor

    def __init__(self, embeddings: Tensor, width: int) -> None:
        super().__init__()
        self.register_buffer("embeddings", embeddings)
        self.project = vector_encoder(embeddings.shape[1], width)

    def forward(self, task: Tensor) -> Tensor:
        """Task numbers [B] int64 -> [B, width]."""
        return self.project(self.embeddings[task])


@torch.no_grad()
def embed_texts(texts: Sequence[str], folder: str) -> Tensor:
    """Embeddings [n, E] float32 by a local Hugging Face text model.

    The mean over a text's tokens, of an encoder-decoder over its encoder's; of CLIP and its
    relatives the text tower's own pooled output. One text at a time: no text's embedding depends on
    the others. SigLIP's are padded to the full length, as in its training, the rest not at all.

    Args:
        texts: instructions.
        folder: a saved model and its tokeniser.

    Raises:
        ValueError: the folder or a part of it is missing; nothing is downloaded.
    """
    tokenizer, model = load_text_model(folder)
    pools_itself = hasattr(model, "get_text_features") or model.config.model_type == (
        "clip_text_model"
    )
    encoder = model.get_encoder() if model.config.is_encoder_decoder else model
    encoder = getattr(model, "text_model", encoder)
    shape: dict[str, Any] = {"return_tensors": "pt", "truncation": True}
    if model.config.model_type.startswith("siglip"):
        length = model.config.get_text_config().max_position_embeddings
        shape |= {"padding": "max_length", "max_length": length}
    embeddings = []
    for text in texts:
        tokens = tokenizer(text, **shape)
        # some tokenisers give no mask: their models were trained without one
        given = {name: tokens[name] for name in ("input_ids", "attention_mask") if name in tokens}
        outputs = encoder(**given)
        hidden = outputs.last_hidden_state
        embeddings.append(outputs.pooler_output if pools_itself else hidden.mean(1))
    return torch.cat(embeddings).float()


def stored_embeddings(file: str) -> Tensor:
    """The embeddings [n, E] that an exported policy has among its weights.

    Args:
        file: safetensors.

    Raises:
        OSError, SafetensorError: it cannot be read.
        ValueError: there are none in it.
    """
    with safe_open(file, "pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118
            if name.endswith(".task.embeddings"):
                return tensors.get_tensor(name)
    raise ValueError(f"{file} has no task.embeddings of task_embedding=text: export the run again")


def load_text_model(folder: str) -> tuple[Any, Any]:
    """Tokeniser and model of a local folder.

    Raises:
        ValueError: a file is missing or does not fit.
    """
    where, path = f"text_encoder_path={folder}", pathlib.Path(folder)
    if not (path / "config.json").is_file():
        raise ValueError(
            f"{where}: config.json is missing; give the folder of a saved Hugging Face text model"
        )
    # without these transformers makes a tokeniser that knows no word
    if not any((path / file).is_file() for file in TOKENIZER_FILES):
        raise ValueError(
            f"{where}: no tokeniser ({', '.join(TOKENIZER_FILES)}); save it beside the model with "
            "tokenizer.save_pretrained"
        )
    from transformers import AutoModel, AutoTokenizer

    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        # a key that is not in the file is drawn at random: not from the caller's generator
        with torch.random.fork_rng(devices=[]):
            tokenizer = AutoTokenizer.from_pretrained(str(path), **local)
            model, report = AutoModel.from_pretrained(str(path), output_loading_info=True, **local)
    except (OSError, ValueError, ImportError) as error:
        raise ValueError(f"{where}: model or tokeniser cannot be loaded ({error})") from error
    missing = sorted(key for key in report["missing_keys"] if not key.startswith("pooler."))
    if missing:  # a pooler is not read
        raise ValueError(
            f"{where}: {len(missing)} weights are missing: {', '.join(missing[:3])}; give the "
            "folder of a complete model"
        )
    return tokenizer, model.eval()
