"""Serves one PyTorch model to gpumon over the worker protocol (docs/worker-protocol.md).

Rule: JSON lines on standard input and output. Nothing touches the GPU before `context` or `load`. Weights and inputs are
random with a fixed seed, in half precision; a batch is one replay of a CUDA graph where the model captures, and its time is
from launch to synchronised, by the monotonic clock.
Not done here: weights that were trained, tokenisation, copying inputs to the GPU.

GPUMON_TORCH_DEVICE=cpu runs the models on the processor in single precision, to try the protocol without a GPU.
"""

import importlib
import json
import os
import queue
import sys
import threading
import time

VERSION = 1
CHUNK_S = 0.05
WARM_UP = 3
DEVICE = os.environ.get("GPUMON_TORCH_DEVICE", "cuda")
# Messages only on the real standard output; whatever a library prints goes to standard error.
OUT = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)


def say(message):
    OUT.write(json.dumps(message, separators=(",", ":")) + "\n")
    OUT.flush()


def vision(module, name):
    def build(torch):
        model = getattr(importlib.import_module("torchvision.models." + module), name)(weights=None)
        return model, lambda batch: (torch.randn(batch, 3, 224, 224),)

    return build


def bert(torch):
    from transformers.models.bert.configuration_bert import BertConfig
    from transformers.models.bert.modeling_bert import BertModel

    model = BertModel(BertConfig(), add_pooling_layer=False)
    model.config.return_dict = False
    return model, lambda batch: (torch.randint(0, 30000, (batch, 128)),)


def gpt(torch):
    """GPT-2's shape: one forward over 256 tokens and the logits of each."""
    from transformers.models.gpt2.configuration_gpt2 import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_embd=1024, n_layer=24, n_head=16, use_cache=False))
    return model, lambda batch: (torch.randint(0, 50000, (batch, 256)),), lambda tokens: model(tokens).logits


def whisper(torch):
    """Whisper small's shape: 30 s of log-mel through the encoder, and 32 tokens through the decoder."""
    from transformers.models.whisper.configuration_whisper import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperModel

    config = WhisperConfig(
        d_model=768,
        encoder_layers=12,
        decoder_layers=12,
        encoder_attention_heads=12,
        decoder_attention_heads=12,
        encoder_ffn_dim=3072,
        decoder_ffn_dim=3072,
        use_cache=False,
    )
    model = WhisperModel(config)

    def forward(features, tokens):
        return model(input_features=features, decoder_input_ids=tokens, return_dict=False)[0]

    def inputs(batch):
        return torch.randn(batch, config.num_mel_bins, 3000), torch.randint(0, 50000, (batch, 32))

    return model, inputs, forward


def diffusion_unet(torch):
    """A latent-diffusion-like UNet: one denoising step on 64 × 64 × 4 latents with 77 tokens of context."""
    nn, functional = torch.nn, torch.nn.functional

    class Residual(nn.Module):
        def __init__(self, inner, outer, embedding):
            super().__init__()
            self.norm1, self.conv1 = nn.GroupNorm(32, inner), nn.Conv2d(inner, outer, 3, padding=1)
            self.time = nn.Linear(embedding, outer)
            self.norm2, self.conv2 = nn.GroupNorm(32, outer), nn.Conv2d(outer, outer, 3, padding=1)
            self.skip = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

        def forward(self, x, t):
            h = self.conv1(functional.silu(self.norm1(x))) + self.time(functional.silu(t))[:, :, None, None]
            return self.skip(x) + self.conv2(functional.silu(self.norm2(h)))

    class Attention(nn.Module):
        def __init__(self, width, context, heads=8):
            super().__init__()
            self.heads, self.norm = heads, nn.LayerNorm(width)
            self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(context, width), nn.Linear(context, width)
            self.out = nn.Linear(width, width)

        def forward(self, x, context=None):
            h = self.norm(x)
            context = h if context is None else context
            split = lambda y: y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            y = functional.scaled_dot_product_attention(split(self.q(h)), split(self.k(context)), split(self.v(context)))
            return x + self.out(y.transpose(1, 2).flatten(2))

    class Transformer(nn.Module):
        def __init__(self, width, context):
            super().__init__()
            self.norm = nn.GroupNorm(32, width)
            self.own, self.cross = Attention(width, width), Attention(width, context)
            self.feed = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x, context):
            h = self.norm(x).flatten(2).transpose(1, 2)
            h = self.cross(self.own(h), context)
            h = h + self.feed(h)
            return x + h.transpose(1, 2).unflatten(2, x.shape[2:])

    class UNet(nn.Module):
        def __init__(self, widths=(320, 640, 1280), embedding=1280, context=768):
            super().__init__()
            self.time = nn.Sequential(nn.Linear(320, embedding), nn.SiLU(), nn.Linear(embedding, embedding))
            self.enter = nn.Conv2d(4, widths[0], 3, padding=1)
            self.down, self.up = nn.ModuleList(), nn.ModuleList()
            skips, width = [widths[0]], widths[0]
            for level, outer in enumerate(widths):
                for _ in range(2):
                    self.down.append(nn.ModuleList([Residual(width, outer, embedding), Transformer(outer, context)]))
                    width = outer
                    skips.append(width)
                if level + 1 < len(widths):
                    self.down.append(nn.ModuleList([nn.Conv2d(width, width, 3, stride=2, padding=1)]))
                    skips.append(width)
            self.middle = nn.ModuleList([Residual(width, width, embedding), Transformer(width, context)])
            for level, outer in reversed(list(enumerate(widths))):
                for _ in range(3):
                    self.up.append(nn.ModuleList([Residual(width + skips.pop(), outer, embedding), Transformer(outer, context)]))
                    width = outer
                if level:
                    self.up.append(nn.ModuleList([nn.Conv2d(width, width, 3, padding=1)]))
            self.leave = nn.Sequential(nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, 4, 3, padding=1))

        def forward(self, latents, step, context):
            t, x = self.time(step), self.enter(latents)
            kept = [x]
            for block in self.down:
                x = block[0](x) if len(block) == 1 else block[1](block[0](x, t), context)
                kept.append(x)
            x = self.middle[1](self.middle[0](x, t), context)
            for block in self.up:
                if len(block) == 1:
                    x = block[0](functional.interpolate(x, scale_factor=2.0))
                else:
                    x = block[1](block[0](torch.cat([x, kept.pop()], 1), t), context)
            return self.leave(x)

    def inputs(batch):
        return torch.randn(batch, 4, 64, 64), torch.randn(batch, 320), torch.randn(batch, 77, 768)

    return UNet(), inputs


# Name: what builds it, and the modules beside torch that are imported for it.
MODELS = {
    "resnet50": (vision("resnet", "resnet50"), ["torchvision.models.resnet"]),
    "resnet152": (vision("resnet", "resnet152"), ["torchvision.models.resnet"]),
    "mobilenet_v3_large": (vision("mobilenetv3", "mobilenet_v3_large"), ["torchvision.models.mobilenetv3"]),
    "vgg11": (vision("vgg", "vgg11"), ["torchvision.models.vgg"]),
    "vgg19": (vision("vgg", "vgg19"), ["torchvision.models.vgg"]),
    "densenet161": (vision("densenet", "densenet161"), ["torchvision.models.densenet"]),
    "densenet169": (vision("densenet", "densenet169"), ["torchvision.models.densenet"]),
    "bert": (bert, ["transformers.models.bert.modeling_bert"]),
    "gpt": (gpt, ["transformers.models.gpt2.modeling_gpt2"]),
    "whisper": (whisper, ["transformers.models.whisper.modeling_whisper"]),
    "diffusion_unet": (diffusion_unet, []),
}


class DoesNotFit(Exception):
    pass


class Server:
    """One model, loaded for one batch size at a time."""

    def __init__(self, name):
        self.name, self.build = name, MODELS[name][0]
        self.torch = self.model = self.step = self.stream = None

    def hello(self):
        # The slow part, before the GPU is touched: imports.
        import torch

        for module in MODELS[self.name][1]:
            importlib.import_module(module)
        self.torch = torch
        ops = ["context", "load", "unload", "batch", "run", "stop", "memory", "quit"]
        return {"version": VERSION, "name": self.name, "ops": ops}

    def context(self):
        self.torch.empty(1, device=DEVICE)
        return {"sms": self.sms()}

    def sms(self):
        cuda = DEVICE == "cuda"
        return self.torch.cuda.get_device_properties(0).multi_processor_count if cuda else None

    def load(self, batch):
        torch = self.torch
        self.step = None
        try:
            if self.model is None:
                torch.manual_seed(1)
                if DEVICE == "cuda":
                    torch.backends.cudnn.benchmark = False
                    torch.set_default_dtype(torch.float16)
                with torch.device(DEVICE):
                    built = self.build(torch)
                self.model = built[0].eval()
                self.inputs = built[1]
                self.forward = built[2] if len(built) > 2 else self.model
            torch.manual_seed(batch)
            with torch.device(DEVICE):
                inputs = self.inputs(batch)
            graph = self.capture(inputs)
        except torch.cuda.OutOfMemoryError as error:
            self.unload()
            raise DoesNotFit(str(error).split("\n")[0])
        return {"memory_bytes": self.memory(), "graph": graph, "sms": self.sms()}

    def capture(self, inputs):
        torch = self.torch
        with torch.inference_mode():
            if DEVICE != "cuda":
                self.forward(*inputs)
                self.step = lambda: self.forward(*inputs)
                return False
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP):
                    self.forward(*inputs)
            torch.cuda.synchronize()
            try:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    kept = self.forward(*inputs)
                graph.replay()
                torch.cuda.synchronize()
                self.kept = (graph, kept, inputs)
                self.step = graph.replay
                return True
            except torch.cuda.OutOfMemoryError:
                raise
            except RuntimeError as error:
                print(f"{self.name} does not capture, so it runs without a graph: {error}", file=sys.stderr)
                torch.cuda.synchronize()

                def step():
                    with torch.inference_mode():
                        self.forward(*inputs)

                self.step = step
                return False

    def unload(self):
        self.model = self.step = self.inputs = self.forward = self.kept = None
        if DEVICE == "cuda" and self.torch.cuda.is_initialized():
            self.torch.cuda.empty_cache()
        return {}

    def memory(self):
        return self.torch.cuda.memory_reserved() if DEVICE == "cuda" else None

    def batch(self):
        """Time of one batch, ns."""
        began = time.perf_counter_ns()
        self.step()
        if DEVICE == "cuda":
            self.torch.cuda.synchronize()
        return time.perf_counter_ns() - began


def run(server, seconds, commands):
    """Batches back to back; false if standard input ended meanwhile."""
    times, chunk_began = [], time.monotonic()
    until = chunk_began + seconds
    goes_on = alive = True
    while goes_on:
        times.append(server.batch() / 1e3)
        now = time.monotonic()
        try:
            message = commands.get_nowait()
            if message is None:
                alive = False
            elif message.get("op") != "stop":
                raise ValueError("only `stop` may come while a run goes on")
            goes_on = False
        except queue.Empty:
            goes_on = now < until
        if now - chunk_began >= CHUNK_S or not goes_on:
            say({"batches_us": times, "done": not goes_on})
            times, chunk_began = [], now
    return alive


def answer(server, message, commands):
    """Does what one message asks for; false when nothing more will come."""
    op = message.get("op")
    if op == "run":
        return run(server, float(message["seconds"]), commands)
    if op == "batch":
        took_us = server.batch() / 1e3
        deadline_us = message.get("deadline_us")
        met = None if deadline_us is None else took_us <= deadline_us
        say({"id": message.get("id"), "batch_us": took_us, "met": met})
    elif op == "context":
        say(server.context())
    elif op == "load":
        say(server.load(int(message["batch"])))
    elif op == "unload":
        say(server.unload())
    elif op == "memory":
        say({"memory_bytes": server.memory()})
    elif op == "stop":
        # It crossed the end of a run.
        pass
    elif op == "quit":
        say({})
        return False
    else:
        raise ValueError(f"`{op}` is no op of this worker")
    return True


def read(commands):
    for line in sys.stdin:
        try:
            commands.put(json.loads(line))
        except ValueError as error:
            commands.put({"op": f"(not JSON: {error})"})
    commands.put(None)


def failed(kind, error):
    say({"error": {"kind": kind, "message": f"{type(error).__name__}: {error}"}})


def main():
    if len(sys.argv) != 2 or sys.argv[1] not in MODELS:
        sys.exit(f"usage: {sys.argv[0]} MODEL; models: {', '.join(MODELS)}")
    server, commands = Server(sys.argv[1]), queue.Queue()
    threading.Thread(target=read, args=(commands,), daemon=True).start()
    try:
        say(server.hello())
    except ImportError as error:
        failed("fatal", error)
        sys.exit(1)
    while (message := commands.get()) is not None:
        try:
            if not answer(server, message, commands):
                break
        except DoesNotFit as error:
            failed("does_not_fit", error)
        except Exception as error:  # Whatever a model does wrong is told, and the next message is waited for.
            failed("failed", error)
    # Neither CUDA's nor a library's clean-up is waited for.
    os._exit(0)


main()
