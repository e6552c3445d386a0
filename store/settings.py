"""Settings: one frozen value, read once at start-up. The only file that reads the environment.

Precedence: command line, then environment, then the default. The command line is built from these fields (`run.py`), so
a setting is described once; rarely used ones share the flag ``--set``. Flags and environment names of the OpenClaw-RL
Tinker launcher are kept verbatim; where two of them had a meaning that was a bug (`kl_loss_coef` scaled the advantage;
`opd` ignored the teacher), the help says what it means here.

Children processes get the same value as a JSON file (`dump`, `load`), never through the environment.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import secrets
import shlex
import stat
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from store.errors import ConfigError
from store.hosts import is_loopback
from store.keys import KeyFile, Keyring, new_key, read_key_file, write_secret
from store.learning import DEFAULTS, LearningConfig, parse_learning, split_learning
from store.training_schedule import TrainingSchedule, parse_schedule
from store.values import EXPLICIT_SOURCES, Method
from store.version import COMMAND

#: Folder that holds the packages: a checkout, or site-packages where Patina was installed by pip.
REPOSITORY = Path(__file__).resolve().parent.parent
IS_CHECKOUT = (REPOSITORY / "pyproject.toml").is_file()
#: What `make run` serves.
DEFAULT_MODEL = "SmolLM2-135M-Instruct"


def split_urls(text: str) -> tuple[str, ...]:
    """Return the URLs of a list separated by commas; a comma may be part of one."""
    return tuple(re.split(r",(?=\s*https?://)", text)) if text else ()


def _checked_url(value: str) -> str:
    if value and not re.match(r"https?://[^/\s]+", value):
        raise ValueError("must be an http:// or https:// URL")
    return value.rstrip("/")


_DATABASES = ("sqlite+aiosqlite", "postgresql+asyncpg")
#: Before a model's name: it is in Ollama's store.
OLLAMA = "ollama:"


def _field(
    default: Any,
    help: str,
    group: str,
    *,
    env: str = "",
    aliases: tuple[str, ...] = (),
    is_secret: bool = False,
    has_flag: bool = True,
    **bounds: Any,
) -> Any:
    """A setting: its default, one line of help and its group there.

    Args:
        env: its name in the environment; default: PATINA_ and its name.
        aliases: names that other launchers use.
        is_secret: its value is never shown (`to_json`).
        bounds: of a number, as pydantic names them.
    """
    extra: Any = {
        "group": group,
        "env": env,
        "aliases": list(aliases),
        "is_secret": is_secret,
        "has_flag": has_flag,
    }
    return Field(default=default, description=help, json_schema_extra=extra, **bounds)


#: A rarely used setting, which the command line takes as ``--set name=value``.
_rare = partial(_field, has_flag=False)


def has_flag(name: str) -> bool:
    """Return whether a setting has a flag of its own."""
    extra: Any = Settings.model_fields[name].json_schema_extra
    return bool(extra["has_flag"])


def option(name: str, value: str) -> str:
    """Return how a command line gives a setting."""
    return f"--{name.replace('_', '-')} {value}" if has_flag(name) else f"--set {name}={value}"


class Settings(BaseModel):
    """Everything a process needs to know; see the field descriptions (they are `run.py --help`)."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False, protected_namespaces=()
    )

    # -- flags of the OpenClaw-RL Tinker launcher, and what belongs with them
    method: Method = _field(
        "combine", "how verdicts become steps: rl, opd, combine or sdpo", "learning", env="METHOD"
    )
    model_name: str = _field(
        DEFAULT_MODEL,
        "default model, a folder, a .gguf file, ollama:NAME or ollama:NAME:TAG, or a name on the Hugging Face hub; also HF_CKPT, CLAAS_BASE_MODEL_ID",
        "model",
        env="MODEL_NAME",
        aliases=("HF_CKPT", "CLAAS_BASE_MODEL_ID"),
    )
    model_folder: str = _rare(
        "",
        "folder with the model's weights; default: where the start finds, downloads or converts --model-name",
        "model",
    )
    model_gguf: str = _rare(
        "", "GGUF file that model_folder was converted from; default: as model_folder", "model"
    )
    cache: str = _rare(
        "",
        "folder of downloaded and converted models, shared by all homes; default: patina in XDG_CACHE_HOME or ~/.cache",
        "model",
    )
    ollama_models: str = _rare(
        "",
        "folder of Ollama's models, for --model-name ollama:NAME; default: ~/.ollama/models, then that of its Linux service",
        "model",
        env="OLLAMA_MODELS",
    )
    lora_rank: int = _field(16, "rank of the LoRA adapters", "learning", env="LORA_RANK", ge=1)
    teacher_model_name: str = _field(
        "",
        "teacher with the hint in context; empty: the policy's own base model",
        "learning",
        env="TEACHER_MODEL_NAME",
    )
    learning_rate: float | None = _field(
        None,
        "AdamW learning rate, a cap on how far a version moves; default 1e-4 on a Tinker server, 4e-4 else",
        "learning",
        env="LEARNING_RATE",
        gt=0,
        lt=1,
    )
    batch_size: int = _field(4, "turns per step", "learning", env="BATCH_SIZE", ge=1)
    most_verdicts_per_hour: int = _rare(
        0,
        "verdicts of one key within an hour that may train; further turns are dropped as over_limit; 0: no limit",
        "learning",
        ge=0,
    )
    max_steps: int = _field(
        0, "stop training after so many steps; 0: never", "learning", env="MAX_STEPS", ge=0
    )
    loss_fn: Literal["ppo", "importance_sampling"] = _field(
        "ppo",
        "surrogate of the advantage term: ppo (clipped) or importance_sampling",
        "learning",
        env="LOSS_FN",
    )
    kl_loss_coef: float = _field(
        0.02,
        "weight of the k2 KL penalty to the base model; OpenClaw-RL scales the directive advantage by it",
        "learning",
        env="KL_LOSS_COEF",
        ge=0,
    )
    save_interval: int = _field(
        20,
        "besides the newest 8 versions, keep the files of every N-th one for rollback",
        "learning",
        env="SAVE_INTERVAL",
        ge=1,
    )
    keep_gb: float = _rare(
        0.0,
        "keep the files of older versions as well, the newest first, up to so many GB; 0: none beyond --save-interval",
        "learning",
        ge=0,
    )
    canary_share: float | None = _rare(
        None,
        "share of the new conversations that a new version serves until its verdicts promote it or roll it back; 0: it goes live "
        "at once; default: 0.5 where one key uses the policy, 0.1 where several do",
        "learning",
        ge=0,
        lt=1,
    )
    canary_after: int = _rare(
        20,
        "the first so many versions of a policy go live at once, without a canary release: a new user sees what is learned",
        "learning",
        ge=0,
    )
    resume_from_ckpt: str = _field(
        "",
        "start from this adapter folder when the record has no version yet",
        "learning",
        env="RESUME_FROM_CKPT",
    )
    w_opd: float = _field(
        1.0, "combine: weight of the directive (teacher) term", "learning", env="OPENCLAW_COMBINE_W_OPD", ge=0
    )
    w_rl: float = _field(
        0.3, "combine: weight of the verdict term", "learning", env="OPENCLAW_COMBINE_W_RL", ge=0
    )
    eval_mode: bool = _field(
        False,
        "opd: also ask for verdicts and report them, without training on them",
        "learning",
        env="EVAL_MODE",
    )
    prm_m: int = _field(3, "judge votes per turn, decided by majority", "scoring", env="PRM_M", ge=1)
    prm_temperature: float = _field(
        0.6, "sampling temperature of the judge", "scoring", env="PRM_TEMPERATURE", ge=0
    )
    prm_max_tokens: int = _field(
        4096, "longest judge answer, in tokens", "scoring", env="PRM_MAX_TOKENS", ge=1
    )
    proxy_host: str = _field("127.0.0.1", "address the proxy listens on", "serving", env="PROXY_HOST")
    insecure: bool = _field(
        False, "let --proxy-host be reachable from other machines although no key is required", "serving"
    )
    proxy_port: int = _field(30000, "port the proxy listens on", "serving", env="PROXY_PORT", ge=0, le=65535)
    served_model_name: str = _field(
        "",
        "name clients see and the policy is recorded under; default: from --model-name",
        "model",
        env="SERVED_MODEL_NAME",
    )
    api_key: str | None = _field(
        None,
        'key clients must send as Bearer; default: generated on first start; "" on the command line: no key',
        "serving",
        env="SGLANG_API_KEY",
        is_secret=True,
    )
    record_dir: str = _field(
        "", "folder of the record (patina.db); default: the home folder", "record", env="RECORD_DIR"
    )
    record_jsonl: str = _field(
        "",
        "folder for turns and verdicts as JSON lines while they happen, a file a day; default: none",
        "record",
    )
    wandb_project: str = _field(
        "", "also log step metrics to this wandb project", "learning", env="WANDB_PROJECT"
    )

    # -- Patina's own
    custom_rm_path: str = _field("", "own reward: module:function or file.py:function", "scoring")
    backend: Literal["embedded", "llamacpp", "vllm", "tinker", "auto"] = _field(
        "auto",
        "what serves the policy; auto: nothing of ours when --upstream is given; "
        "tinker when TINKER_BASE_URL is set, vllm where there is an NVIDIA GPU and an environment for it; embedded otherwise",
        "serving",
    )
    upstream: str = _field(
        "",
        "base URL of an OpenAI-compatible endpoint to serve through instead of a local backend; with --backend vllm a running "
        "vLLM, and several copies of it by repeating this",
        "serving",
    )
    upstream_auth: Literal["key", "passthrough"] = _field(
        "key",
        "whose credentials --upstream gets: key (--upstream-api-key) or passthrough (each client's own; the key of this "
        "proxy then comes in the header x-patina-key)",
        "serving",
    )
    native_apis: bool = _rare(
        False,
        "forward /v1/responses and /v1/messages to a backend that has them, unread and not recorded; default: translate them to "
        "chat, which is recorded",
        "serving",
    )
    cors_origins: str = _field(
        "", "web pages that may call from a browser, separated by commas, or *; default: none", "serving"
    )
    metrics_public: bool = _rare(False, "serve /metrics without a key; default: an owner's key", "serving")
    otlp_endpoint: str = _field(
        "",
        "base URL of an OpenTelemetry collector (OTLP over HTTP) for spans and metrics; default: none",
        "serving",
        env="OTEL_EXPORTER_OTLP_ENDPOINT",
    )
    otlp_headers: str = _rare(
        "",
        "headers for --otlp-endpoint: name=value,name=value",
        "serving",
        env="OTEL_EXPORTER_OTLP_HEADERS",
        is_secret=True,
    )
    otlp_content: bool = _rare(
        False,
        "send the text of messages and replies to --otlp-endpoint as well",
        "serving",
        env="OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT",
    )
    upstream_api_key: str = _field("", "key sent to --upstream", "serving", is_secret=True)
    judge: str = _field(
        "auto",
        "who scores besides the rules: none, self (the policy's base model) or a litellm model such as "
        "openai/gpt-4.1-mini; auto: self where the model passes a start-up self-test",
        "scoring",
    )
    judge_api_base: str = _field("", "own base URL for the judge", "scoring")
    judge_api_key: str = _rare(
        "", "key for the judge; default: the provider's own variable", "scoring", is_secret=True
    )
    open_webui_url: str = _rare(
        "", "address of an Open WebUI whose ratings train, e.g. http://127.0.0.1:8080; empty: none", "scoring"
    )
    open_webui_token: str = _rare("", "API key of one of its administrators", "scoring", is_secret=True)
    open_webui_key: str = _rare(
        "default", "name of the Patina key that it sends its requests with", "scoring"
    )
    rubric: str = _field("", "text file woven into the judge's question: what counts as good", "scoring")
    home: Path = _field(Path("~/.patina"), "folder of the record, keys and adapters", "record")
    database: str = _field("", "database URL instead of patina.db (sqlite or postgresql+asyncpg)", "record")
    backend_port: int = _rare(0, "port of the local backend; 0: any free one", "serving", ge=0, le=65535)
    vllm_python: str = _rare(
        "",
        "python of the environment that has vLLM; default: .venv-vllm, made by scripts/install_vllm.py",
        "serving",
    )
    vllm_args: str = _field(
        "", "more flags for vLLM, as in a shell; they win over the derived ones", "serving"
    )
    gpu_memory_share: float = _rare(
        0.0, "share of the GPU's memory for vLLM; 0: computed, and shown at start", "serving", ge=0, lt=1
    )
    colocate: Literal["auto", "share", "sleep"] = _field(
        "auto",
        "vLLM and the trainer on one GPU: share (both at once), or sleep (vLLM sleeps while a step runs, requests wait up to "
        "max_hold); auto: share where both fit, which is computed and shown at start",
        "serving",
    )
    workers: int = _field(
        1, "gateway processes that share the port; one serves some hundred requests a second", "serving", ge=1
    )
    accept_any_model: Literal["auto", "on", "off"] = _rare(
        "auto",
        "serve unknown model names such as gpt-4o-mini by the policy: on, off, or auto (on while every key uses one policy)",
        "serving",
    )
    wishes: Literal["auto", "both", "prompt", "weights", "off"] = _field(
        "auto",
        "where a stated wish acts: prompt (added to the next requests), weights (learnt), both (in the prompt until the weights follow it) or "
        "off; auto: both, and off for an --upstream that is only served",
        "learning",
    )
    sync: Literal["none", "group"] = _field(
        "none",
        "journal: none survives a crash of any process; group also syncs to disk before a reply ends, many turns at a time, "
        "and survives a power cut",
        "serving",
    )
    max_hold: float = _rare(
        10.0,
        "--colocate sleep: seconds that a request waits before the step stops at its next boundary and lets it through",
        "serving",
        ge=0,
    )
    quantize: Literal["none", "4bit"] = _field(
        "none",
        "how the trainer holds the base model: none, or 4bit (NF4 by bitsandbytes; needs an NVIDIA GPU)",
        "learning",
    )
    max_model_len: int = _field(
        0, "vLLM's context in tokens; 0: as much of the model's as fits", "serving", ge=0
    )
    tool_call_parser: str = _rare(
        "", "vLLM's parser of tool calls; default: by the model's family; none: none", "serving"
    )
    tinker_base_url: str = _field(
        "",
        "base URL of a Tinker server of your own, for --backend tinker; default: the hosted one",
        "serving",
        env="TINKER_BASE_URL",
    )
    tinker_api_key: str = _rare(
        "",
        "key of the Tinker server (tml-...); a server on this machine needs none",
        "serving",
        env="TINKER_API_KEY",
        is_secret=True,
    )
    tinker_model: str = _rare(
        "", "the Tinker server's name of the base model, where it is not --model-name", "serving"
    )
    adapter_slots: int = _rare(
        8,
        "adapter versions served at once; a new one waits until an old one is idle when all are in use",
        "serving",
        ge=2,
    )
    threads: int = _field(
        0,
        "CPU threads for the engine and the trainer each; 0: half of the cores for the engine, and all for the trainer, which yields them",
        "serving",
        ge=0,
    )

    learning: LearningConfig = _field(
        DEFAULTS,
        "learning settings as key=value, separated by commas; see docs/reference/settings.md",
        "learning",
    )
    max_wait_s: float = _rare(
        0.0,
        "train on fewer turns than --batch-size once a complaint has waited so long and none came for half of it; 0: half as long as a "
        "version takes here, 30 to 600 s",
        "learning",
        ge=0,
    )
    train_when: str = _field(
        "always",
        "when a step may begin: always, idle (no main request for idle_minutes; a request that comes during a step interrupts "
        f"it), manual (`{COMMAND} train --now`), or a time of day such as 23:00-07:00",
        "learning",
    )
    train_on: Literal["here", "modal"] = _field(
        "here",
        "where steps are computed: here (this machine, or the Tinker server of --backend tinker), or modal (a GPU of your Modal account; "
        "the turns of each batch are sent there)",
        "learning",
    )
    idle_minutes: float = _rare(30.0, "--train-when idle: minutes without a main request", "learning", ge=0)
    seed: int = _field(0, "seed of training", "learning")

    @field_validator("learning", mode="before")
    @classmethod
    def _learning(cls, value: Any) -> Any:
        return parse_learning(value) if isinstance(value, str) else value

    @field_validator("vllm_args")
    @classmethod
    def _words(cls, value: str) -> str:
        try:
            shlex.split(value)
        except ValueError as exc:
            raise ValueError(f"cannot be split into words: {exc}") from exc
        return value

    @field_validator("served_model_name")
    @classmethod
    def _name(cls, value: str) -> str:
        if value and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", value):
            raise ValueError("use letters, digits, '.', '_' and '-'")
        return value

    @field_validator("judge_api_base", "tinker_base_url", "otlp_endpoint")
    @classmethod
    def _url(cls, value: str) -> str:
        return _checked_url(value)

    @field_validator("upstream")
    @classmethod
    def _urls(cls, value: str) -> str:
        return ",".join(_checked_url(one.strip()) for one in split_urls(value))

    @field_validator("database")
    @classmethod
    def _database_url(cls, value: str) -> str:
        kind, separator, rest = value.partition("://")
        if not value or kind in _DATABASES:
            return value
        if kind in ("sqlite", "postgresql", "postgres", "postgresql+psycopg"):
            name = _DATABASES[0] if kind == "sqlite" else _DATABASES[1]
            raise ValueError(f"write {name}://{re.sub('//[^/@]*@', '//…@', '//' + rest)[2:]}")
        if not separator:
            path = Path(value).expanduser().absolute()
            raise ValueError(f"is a URL, not a file: write sqlite+aiosqlite:///{path}")
        raise ValueError(f"{kind} is not supported: sqlite+aiosqlite or postgresql+asyncpg")

    @field_validator("train_when")
    @classmethod
    def _is_a_schedule(cls, value: str) -> str:
        parse_schedule(value, 0.0)
        return value

    @field_validator("record_jsonl")
    @classmethod
    def _folder(cls, value: str) -> str:
        return str(Path(value).expanduser().absolute()) if value else ""

    @field_validator("home")
    @classmethod
    def _expand(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.api_key == "" and not self.is_loopback and not self.insecure:
            raise ValueError(
                f"--proxy-host {self.proxy_host} without a key opens the model and the record to the network: leave out "
                '--api-key "", or give --insecure as well'
            )
        if self.upstream and self.backend in ("embedded", "llamacpp", "tinker"):
            raise ValueError(f"--upstream and --backend {self.backend} exclude each other")
        if len(self.upstreams) > 1 and self.backend != "vllm":
            raise ValueError("several --upstream are copies of one vLLM: give --backend vllm as well")
        if self.workers > 1 and self.proxy_port == 0:
            raise ValueError("--workers needs a --proxy-port that the processes can share")
        if self.workers > 1 and self.colocate == "sleep":
            raise ValueError(
                "--colocate sleep and --workers exclude each other: one gateway decides when vLLM sleeps"
            )
        if self.colocate == "sleep" and (self.upstream or self.backend not in ("vllm", "auto")):
            raise ValueError(
                "--colocate sleep is for a vLLM that Patina starts: --backend vllm without --upstream"
            )
        if self.train_on == "modal" and (self.backend == "tinker" or not self.trains_locally):
            raise ValueError("--train-on modal is for --backend vllm and the built-in engine")
        if self.train_on == "modal" and self.colocate == "sleep":
            raise ValueError("--train-on modal leaves the device to vLLM: leave out --colocate sleep")
        if self.upstream_auth == "passthrough" and self.trains_locally and self.upstream:
            raise ValueError("--upstream-auth passthrough and --backend vllm exclude each other")
        if self.wishes in ("both", "weights") and not self.trains_locally:
            raise ValueError(
                f"--wishes {self.wishes} needs weights that can be trained: an --upstream can have prompt"
            )
        if self.upstream_auth == "passthrough" and not self.upstream:
            raise ValueError("--upstream-auth passthrough needs --upstream")
        return self

    # -- derived here only, so that all processes agree
    @property
    def policy(self) -> str:
        """Name the policy is served and recorded under."""
        return self.served_model_name or self.policy_of_model

    @property
    def policy_of_model(self) -> str:
        """The policy's name where none is given: the model's."""
        name = self.model_name
        own = name.removeprefix(OLLAMA) if name.startswith(OLLAMA) else Path(name).name.removesuffix(".gguf")
        return re.sub(r"[^A-Za-z0-9._-]+", "-", own).strip("-.")

    @property
    def models_folder(self) -> Path:
        """Downloaded and converted models."""
        usual = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        return Path(self.cache or f"{usual}/patina").expanduser().absolute() / "models"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches the proxy."""
        return is_loopback(self.proxy_host)

    @property
    def model_path(self) -> str:
        """What `from_pretrained` is given."""
        return self.model_folder or self.model_name

    @property
    def trains_locally(self) -> bool:
        """Whether adapters can be trained and served: an --upstream that is not a vLLM of ours is served and recorded only."""
        return not self.upstream or self.backend == "vllm"

    @property
    def wishes_in_prompt(self) -> bool:
        """Whether the gateway adds active wishes to prompts."""
        return self.wishes in ("both", "prompt") or (self.wishes == "auto" and self.trains_locally)

    @property
    def wishes_in_weights(self) -> bool:
        """Whether the trainer teaches wishes to the weights."""
        return self.wishes in ("both", "weights") or (self.wishes == "auto" and self.trains_locally)

    @property
    def learns_wishes(self) -> bool:
        """Whether the method learns from stated wishes."""
        return self.method != "rl" and self.wishes_in_weights

    @property
    def verdict_sources(self) -> tuple[str, ...] | None:
        """Beginnings of `Verdict.source` of the verdicts that the method learns from; (): of none, None: of all."""
        return {"rl": None, "combine": EXPLICIT_SOURCES}.get(self.method, ())

    @property
    def upstreams(self) -> tuple[str, ...]:
        """The endpoints of `upstream`."""
        return split_urls(self.upstream)

    @property
    def resolved_learning_rate(self) -> float:
        if self.learning_rate is not None:
            return self.learning_rate
        # A cap where a version's movement is measured and bounded (`trainer.step_size`); on a Tinker server it is the step.
        return 1e-4 if self.backend == "tinker" else 4e-4

    @property
    def resolved_alpha(self) -> float:
        """Of the divergence from the teacher: forward KL where the replies are the teacher's own (prompt distillation), SDPO's one half."""
        if self.learning.alpha is not None:
            return self.learning.alpha
        return 0.0 if self.method == "combine" else 0.5

    @property
    def resolved_judge(self) -> str:
        if self.judge != "auto":
            return self.judge
        return "self" if self.trains_locally else "none"

    @property
    def resolved_threads(self) -> int:
        return self.threads or max(1, (os.cpu_count() or 2) // 2)

    @property
    def database_url(self) -> str:
        if self.database:
            return self.database
        folder = Path(self.record_dir).expanduser().absolute() if self.record_dir else self.home
        return f"sqlite+aiosqlite:///{folder / 'patina.db'}"

    @property
    def adapters_folder(self) -> Path:
        return self.home / "adapters"

    def adapters_folder_of(self, policy: str) -> Path:
        """Return the folder of a policy's versions: the shared policy's are beside the folders of the others."""
        return self.adapters_folder if policy == self.policy else self.adapters_folder / policy

    @property
    def upstream_address(self) -> str:
        """The upstream without credentials: what may be shown."""
        return re.sub(r"//[^/@]*@", "//", self.upstream)

    @property
    def gateway_url(self) -> str:
        """Where this machine reaches the gateway, without ``/v1``."""
        host = self.proxy_host if self.proxy_host not in ("0.0.0.0", "::") else "localhost"
        return f"http://{f'[{host}]' if ':' in host else host}:{self.proxy_port}"

    @property
    def schedule(self) -> TrainingSchedule:
        return parse_schedule(self.train_when, self.idle_minutes)

    @property
    def metrics_file(self) -> Path:
        """Metrics of the recorder, which `/metrics` includes."""
        return self.home / "metrics.prom"

    @property
    def keys_file(self) -> Path:
        return self.home / "keys.json"

    @property
    def logs_folder(self) -> Path:
        return self.home / "logs"

    @property
    def version_locks_folder(self) -> Path:
        return self.home / "run" / "versions"

    @property
    def journal_folder(self) -> Path:
        return self.home / "journal"

    @property
    def backend_key_file(self) -> Path:
        """Holds the secret of the backend that Patina starts, new at each start."""
        return self.home / "run" / "backend_key"

    @property
    def backend_key(self) -> str:
        """What the gateway sends to the backend: the secret of the one that Patina started, or --upstream-api-key.

        Raises:
            ConfigError: the file of the secret cannot be read.
        """
        if self.upstream or not self.backend_key_file.exists():
            return self.upstream_api_key
        return read_key_file(self.backend_key_file)

    @property
    def sign_in_folder(self) -> Path:
        return self.home / "run" / "sign_in"

    @property
    def key_file(self) -> Path:
        return self.home / "api_key"

    def dump(self, path: Path) -> None:
        """Write the value for child processes, readable by this user only (it may hold keys)."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = path.with_suffix(".tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(self.model_dump_json())
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path) -> Settings:
        """Read what `dump` wrote. It names every field, so neither environment nor defaults take part.

        Raises:
            ConfigError: the file is missing or not a settings file.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(data, dict):
                raise ConfigError(f"the settings in {path} are not an object")
            missing = cls.model_fields.keys() - data.keys()
            missing |= LearningConfig.model_fields.keys() - (data.get("learning") or {}).keys()
            if missing:
                raise ConfigError(f"the settings in {path} lack {', '.join(sorted(missing))}")
            return cls(**data)
        except (OSError, ValueError, KeyError) as exc:
            raise ConfigError(f"cannot read the settings in {path}: {exc}") from exc


for _name, _setting in Settings.model_fields.items():
    _extra: Any = _setting.json_schema_extra
    _extra["env"] = _extra["env"] or f"PATINA_{_name.upper()}"


def read_settings(given: dict[str, Any]) -> Settings:
    """Return the settings from ``given`` values, the environment and the defaults.

    Args:
        given: by field name; a learning setting may stand beside the others or in "learning". Those of the environment that
            are not given stay.

    Raises:
        ConfigError: one clear sentence for the first wrong value.
    """
    others, learning = split_learning(given)
    found: dict[str, Any] = {name: os.environ[variable] for name, variable in _variables().items()}
    try:
        if learning or others.get("learning"):
            whole = others.get("learning") or {}
            others["learning"] = {
                **parse_learning(found.get("learning", "")),
                **(parse_learning(whole) if isinstance(whole, str) else dict(whole)),
                **learning,
            }
        return Settings(**{**found, **others})
    except ValidationError as exc:
        error = exc.errors()[0]
        raise ConfigError(_sentence(error, given)) from None
    except ValueError as exc:
        raise ConfigError(f"--learning: {exc}") from None


def environment_names(name: str) -> list[str]:
    """Return the names that a setting has in the environment; the first that is set and not empty counts."""
    extra: Any = Settings.model_fields[name].json_schema_extra
    own = [] if extra["env"].startswith("PATINA_") else [f"PATINA_{extra['env']}"]
    return [extra["env"], *own, *extra["aliases"]]


def _variables() -> dict[str, str]:
    """Return the settings that the environment gives, each with its variable."""
    given = {
        name: [one for one in environment_names(name) if os.environ.get(one)]
        for name in Settings.model_fields
    }
    return {name: variables[0] for name, variables in given.items() if variables}


#: Where a setting comes from that nothing sets.
DEFAULT_ORIGIN = "default"


#: Settings that the start fills in where nothing sets them (`serving.models`).
_FOUND_AT_START = frozenset({"model_folder", "model_gguf"})


def origins_of(settings: Settings) -> dict[str, str]:
    """Return from where each setting of a start comes, read in a process that has its environment."""
    plain = Settings()
    variables = _variables()
    try:
        given = read_settings({})
    except ConfigError:  # the command line replaced what is wrong there
        given = plain
    found = {}
    for name in Settings.model_fields:
        value = getattr(settings, name)
        if value == getattr(plain, name):
            found[name] = DEFAULT_ORIGIN
        elif name in variables and value == getattr(given, name):
            found[name] = f"environment: {variables[name]}"
        else:
            found[name] = "found at the start" if name in _FOUND_AT_START else "command line"
    return found


#: pydantic's words, and those for a person.
_WORDS = {"Input should be": "must be", "greater than or equal to": "at least", "less than or equal to": "at most",
          "greater than": "above", "less than": "below"}  # fmt: skip


def _sentence(error: Any, given: dict[str, Any]) -> str:
    shown = re.sub(r"//[^/@']*@", "//…@", repr(error["input"]))  # a URL may hold a password
    place = str(error["loc"][0]) if error["loc"] else ""
    message: str = error["msg"].removeprefix("Value error, ")
    for theirs, ours in _WORDS.items():
        message = message.replace(theirs, ours, 1)
    if error["type"] == "literal_error":
        choices = re.findall(r"'([^']+)'", error["ctx"]["expected"])
        message += "".join(
            f"; did you mean {one}?" for one in difflib.get_close_matches(str(error["input"]), choices, 1)
        )
    if not place:
        return message
    if len(error["loc"]) > 1:
        return f"--learning {error['loc'][1]}={error['input']}: {message}"
    if place not in Settings.model_fields:
        return f"{place}: {message}"
    if place not in given:
        return f"{_variables().get(place, place)}={shown} (from the environment): {message}"
    return f"{option(place, shown)}: {message}"


def ensure_api_key(settings: Settings) -> tuple[str, bool]:
    """Return (key, whether it was made just now). The key file is 0600; an empty key means no authorisation.

    Raises:
        ConfigError: the key file cannot be read or written.
    """
    if settings.api_key is not None:
        return settings.api_key, False
    path = settings.key_file
    try:
        settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.exists():
            return path.read_text(encoding="utf-8").strip(), False
        key = new_key()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(key + "\n")
    except OSError as exc:
        raise ConfigError(f"cannot keep the API key in {path}: {exc.strerror or exc}") from exc
    return key, True


def renew_backend_key(settings: Settings) -> None:
    """Write a new secret for the backend that Patina starts. Raises: ConfigError."""
    write_secret(settings.backend_key_file, secrets.token_urlsafe(32))


#: Names of environment variables that hold secrets.
_SECRET_NAME = re.compile(r"(?i)(api_?key|token|secret|password|passwd|credentials?|private_key)(_|$)")


def without_secrets(environment: Mapping[str, str], keeps: Collection[str] = ()) -> dict[str, str]:
    """Return an environment without the variables that hold secrets, but those in ``keeps``; no child reads our settings there."""
    own = {variable for name in Settings.model_fields for variable in environment_names(name)}
    return {
        name: value
        for name, value in environment.items()
        if name in keeps or not (name in own or _SECRET_NAME.search(name))
    }


def provider_variables() -> list[str]:
    """Return the variables with secrets that are not ours: a judge's provider, or a person's own reward, may read them."""
    own = {variable for name in Settings.model_fields for variable in environment_names(name)}
    return [name for name in os.environ if _SECRET_NAME.search(name) and name not in own]


def make_private(home: Path) -> None:
    """Make the home's folder, or close an earlier one, so that only its owner can read it.

    Raises:
        ConfigError: it belongs to another user, or is a shared folder that holds other things too.
    """
    if home.exists() and not home.is_dir():
        raise ConfigError(f"the home {home} is a file: give --home a folder")
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = home.stat()
        if found.st_uid == os.geteuid() and not found.st_mode & 0o077:
            return
        is_ours = any((home / name).exists() for name in ("patina.db", "api_key", "run", "journal"))
        if (
            found.st_uid == os.geteuid()
            and (is_ours or not any(home.iterdir()))
            and not found.st_mode & stat.S_ISVTX
        ):
            home.chmod(0o700)
            return
    except OSError as exc:
        raise ConfigError(f"the home {home} cannot be made private: {exc.strerror or exc}") from exc
    raise ConfigError(
        f"other users can read the home {home}, and conversations are kept there: chmod 700 {shlex.quote(str(home))} as its "
        "owner, or give another --home"
    )


def open_keyring(settings: Settings, key: str) -> Keyring:
    """Return the accepted API keys: the first key, and the named keys of this home."""
    file = settings.key_file if settings.api_key is None else None
    return Keyring(key, key_file=file, named=KeyFile(settings.keys_file))


def child_environment(**extra: str) -> dict[str, str]:
    """Return the environment for a child process: ours, plus ``extra``, offline and quiet where libraries allow.

    A child imports the packages that this process has, never a folder of the same name in the working directory.
    """
    return {
        **os.environ,
        **({"PYTHONPATH": str(REPOSITORY)} if IS_CHECKOUT else {}),
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        **extra,
    }


def default_environment(**values: str) -> None:
    """Set environment variables that are not set: for libraries without another interface."""
    for name, value in values.items():
        os.environ.setdefault(name, value)


#: Beside the group "learning": settings that say which weights are trained.
_TRAINED = frozenset({"model_name", "threads"})


def training_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings that decide what a step computes, as JSON; none of them is a secret."""
    data = to_json(settings)
    return {
        name: data[name]
        for name, field in Settings.model_fields.items()
        if name in _TRAINED
        or (isinstance(field.json_schema_extra, dict) and field.json_schema_extra["group"] == "learning")
    }


def to_json(settings: Settings) -> dict[str, Any]:
    """Return the settings as JSON with every secret and the credentials in every URL blanked, for `status` and version metrics."""
    data: dict[str, Any] = json.loads(settings.model_dump_json())
    for name, field in Settings.model_fields.items():
        extra: Any = field.json_schema_extra
        if extra["is_secret"] and data[name]:
            data[name] = "***"
        elif isinstance(data[name], str):
            data[name] = re.sub(r"//[^/@]*@", "//***@", data[name])
    return data
