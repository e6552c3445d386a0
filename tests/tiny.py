"""A tiny random model and adapters for tests: real files in the real formats, made in a second, no network.

The model is a two-layer Qwen3 with a byte-level BPE tokenizer and a chat template that knows tools. It has learnt nothing; its
greedy outputs are stable for a given seed, which is what the tests of an engine need.
"""

from __future__ import annotations

from pathlib import Path

CHAT_TEMPLATE = """\
{%- if tools %}<|im_start|>system
{%- if messages and messages[0].role == 'system' %}
{{ messages[0].content }}
{%- endif %}
You may call these functions:
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
Answer with <tool_call>{"name": ..., "arguments": ...}</tool_call> to call one.<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if not (loop.first and tools and message.role == 'system') %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

_CORPUS = [
    "The capital of France is Paris, and the capital of Spain is Madrid.",
    "What is the opposite of hot? The opposite of hot is cold.",
    "Please answer shorter, in plain text and without emoji. 😀 🎉 Größe, año, café.",
    "system user assistant tool continual learning from real conversations",
    '{"name": "get_weather", "arguments": {"city": "Paris"}}',
]


def make_tiny_model(folder: Path, *, seed: int = 0, vocabulary: int = 512) -> Path:
    """A random Qwen3 (hidden 64, 2 layers, context 2,048) with tokenizer and chat template; gives `folder` back."""
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.train_from_iterator(
        _CORPUS * 20,
        trainers.BpeTrainer(
            vocab_size=vocabulary - 2,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer.add_tokens(
        [AddedToken("<tool_call>", special=False), AddedToken("</tool_call>", special=False)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=2048
    )
    fast.chat_template = CHAT_TEMPLATE
    config = Qwen3Config(
        vocab_size=len(fast),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        eos_token_id=fast.eos_token_id,
        bos_token_id=None,
        pad_token_id=fast.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
        for parameter in model.parameters():
            # The usual 0.02 makes every next token equally likely; spread the logits so that tests see real differences.
            if parameter.dim() == 2:
                parameter.data.mul_(5.0)
    model.to(torch.float32).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def make_tiny_llama(folder: Path, tokenizer: Path, *, seed: int = 0) -> Path:
    """A random Llama of the same size with the tokenizer of the tiny model; gives `folder` back."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    fast = AutoTokenizer.from_pretrained(tokenizer)
    config = LlamaConfig(
        vocab_size=len(fast),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        eos_token_id=fast.eos_token_id,
        bos_token_id=None,
        pad_token_id=fast.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.data.mul_(5.0)  # see above
    model.to(torch.float32).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def make_tiny_adapter(
    folder: Path, base: Path, seed: int = 1, *, rank: int = 4, strength: float = 1.0
) -> Path:
    """A random LoRA adapter of `base` on all its linear layers, in peft's format; gives `folder` back."""
    import warnings

    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", FutureWarning
            )  # peft still asks transformers by an old attribute name
            lora = get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear"))
        for name, parameter in lora.named_parameters():
            if "lora_B" in name:  # peft starts B at zero, an adapter that changes nothing
                torch.nn.init.normal_(parameter, std=0.05 * strength)
    lora.save_pretrained(folder)
    return folder


def make_tiny_parrot(
    folder: Path,
    base: Path,
    messages: list[dict[str, object]],
    reply: str,
    *,
    tools: list[object] | None = None,
) -> Path:
    """The tiny model, trained for two seconds until it greedily gives `reply` to `messages`; gives `folder` back.

    For what a random model never writes by itself, a tool call above all.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    options = {"tools": tools, "tokenize": False, "add_generation_prompt": True}
    prompt = tokenizer(tokenizer.apply_chat_template(messages, **options))["input_ids"]
    answer = tokenizer(reply)["input_ids"] + [tokenizer.eos_token_id]
    ids = torch.tensor([prompt + answer])
    labels = torch.tensor([[-100] * len(prompt) + answer])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(300):
        loss = model(input_ids=ids, labels=labels).loss
        if loss.item() < 0.01:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    else:
        raise AssertionError(f"the tiny model did not learn the reply (loss {loss.item():.3f})")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
