"""Text embeddings beside direct computations with tiny random models, saved as users save them."""

import json

import pytest
import torch
from transformers import (
    AutoModel,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    BertTokenizerFast,
    CLIPConfig,
    CLIPModel,
    CLIPTextConfig,
    CLIPTextModel,
    SiglipConfig,
    SiglipModel,
    T5Config,
    T5Model,
)

from pld_ray.networks.encoders import embed_texts

TASKS = ("lift the can", "place the can in the bin")
WORDS = sorted({word for task in TASKS for word in task.split()})
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
SMALL = {"vocab_size": len(VOCABULARY), "hidden_size": 16, "intermediate_size": 32}
SMALL |= {"num_hidden_layers": 1, "num_attention_heads": 2}
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def save_tokenizer(folder):
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY))
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)


def saved(folder, kind, config, tokenizer=True):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        kind(config).save_pretrained(folder)
    if tokenizer:
        save_tokenizer(folder)
    return str(folder)


def tokens(task):
    """Numbers of [CLS] words [SEP], by hand."""
    return [2, *(VOCABULARY.index(word) for word in task.split()), 3]


def test_embeddings_are_the_mean_over_the_attention_mask(tmp_path):
    folder = saved(tmp_path, BertModel, BertConfig(**SMALL))
    embeddings = embed_texts(TASKS, folder)
    rows = [tokens(task) for task in TASKS]
    longest = max(map(len, rows))
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    padded = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    with torch.no_grad():
        model = AutoModel.from_pretrained(folder).eval()
        hidden = model(input_ids=padded, attention_mask=mask).last_hidden_state
    expected = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    torch.testing.assert_close(embeddings, expected, **CLOSE)
    assert embeddings.dtype == torch.float32
    assert not embeddings.requires_grad
    assert not torch.allclose(embeddings[0], embeddings[1], atol=0.05)


def clip_text_config():
    return CLIPTextConfig(**SMALL, max_position_embeddings=16, bos_token_id=2, eos_token_id=3)


@pytest.mark.parametrize("whole", [False, True], ids=["text tower", "text and vision"])
def test_clip_pools_by_itself(tmp_path, whole):
    config = clip_text_config()
    if whole:
        vision = {**SMALL, "image_size": 32, "patch_size": 16}
        vision.pop("vocab_size")
        folder = saved(
            tmp_path,
            CLIPModel,
            CLIPConfig(text_config=config.to_dict(), vision_config=vision, projection_dim=4),
        )
    else:
        folder = saved(tmp_path, CLIPTextModel, config)
    embeddings = embed_texts(TASKS, folder)
    model = CLIPTextModel.from_pretrained(folder).eval()
    for task, embedding in zip(TASKS, embeddings, strict=True):
        with torch.no_grad():  # pooled: the last layer at the end token
            last = model(input_ids=torch.tensor([tokens(task)])).last_hidden_state[0, -1]
        torch.testing.assert_close(embedding, last, **CLOSE)


def test_an_encoder_decoder_gives_its_encoder(tmp_path):
    config = T5Config(
        vocab_size=len(VOCABULARY), d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2
    )
    folder = saved(tmp_path, T5Model, config)
    model = T5Model.from_pretrained(folder).eval()
    with torch.no_grad():
        hidden = model.encoder(input_ids=torch.tensor([tokens(TASKS[0])])).last_hidden_state
    torch.testing.assert_close(embed_texts(TASKS, folder)[0], hidden[0].mean(0), **CLOSE)


def test_a_pooler_may_be_missing_and_the_global_generator_is_left_alone(tmp_path):
    folder = saved(tmp_path, BertForMaskedLM, BertConfig(**SMALL))  # has no pooler
    before = torch.get_rng_state()
    first = embed_texts(TASKS, folder)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(embed_texts(TASKS, folder), first)


def test_missing_parts_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"text_encoder_path=/nowhere: config.json is missing"):
        embed_texts(TASKS, "/nowhere")
    with pytest.raises(ValueError, match=r"config.json is missing"):
        embed_texts(TASKS, str(tmp_path))
    folder = saved(tmp_path, BertModel, BertConfig(**SMALL), tokenizer=False)
    with pytest.raises(ValueError, match=r"no tokeniser .tokenizer.json"):
        embed_texts(TASKS, folder)
    save_tokenizer(tmp_path)
    embed_texts(TASKS, folder)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="cannot be loaded"):
        embed_texts(TASKS, folder)


def test_an_incomplete_model_is_refused(tmp_path):
    saved(tmp_path / "deep", BertModel, BertConfig(**{**SMALL, "num_hidden_layers": 2}), False)
    folder = saved(tmp_path, BertModel, BertConfig(**SMALL))
    (tmp_path / "config.json").write_text((tmp_path / "deep" / "config.json").read_text())
    with pytest.raises(ValueError, match=r"16 weights are missing: encoder.layer.1"):
        embed_texts(TASKS, folder)


def test_siglip_is_padded_to_its_full_length_and_may_have_no_mask(tmp_path):
    """As in its training, where the last position is what it pools."""
    text = {**SMALL, "max_position_embeddings": 16, "pad_token_id": 0}
    vision = {**SMALL, "image_size": 16, "patch_size": 8}
    vision.pop("vocab_size")
    folder = saved(tmp_path, SiglipModel, SiglipConfig(text_config=text, vision_config=vision))
    names = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({**names, "model_input_names": ["input_ids"]})
    )
    embeddings = embed_texts(TASKS, folder)
    model = AutoModel.from_pretrained(folder).eval()
    for task, embedding in zip(TASKS, embeddings, strict=True):
        row = (tokens(task) + [0] * 16)[:16]
        with torch.no_grad():
            expected = model.text_model(input_ids=torch.tensor([row])).pooler_output[0]
        torch.testing.assert_close(embedding, expected, **CLOSE)
