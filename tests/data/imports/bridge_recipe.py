from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _pretrain_common
import torch

LONG = 16384


def small_llama_64gpu_config():
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-70B").to_megatron_provider(
        load_weights=False
    )
    _cut(cfg, tensor=4)
    cfg.model.seq_length = LONG // 2
    cfg.train.global_batch_size = 128
    cfg.train.micro_batch_size = 1
    cfg.ddp.use_distributed_optimizer = True
    cfg.ddp.overlap_grad_reduce = True
    cfg.ddp.grad_reduce_in_fp32 = False
    cfg.mixed_precision = "bf16_mixed"
    return cfg


def two_layers_config():
    cfg = _pretrain_common()
    cfg.model = GPTModelProvider(
        num_layers=2,
        hidden_size=1024,
        ffn_hidden_size=4096,
        num_attention_heads=16,
        seq_length=2048,
        vocab_size=32000,
        pipeline_dtype=torch.bfloat16,
    )
    cfg.train.global_batch_size = 8
    cfg.train.micro_batch_size = 1
    if cfg.comm_overlap is None:
        cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=True)
    return cfg


def _cut(cfg, tensor=1):
    cfg.model.tensor_model_parallel_size = tensor
    cfg.model.pipeline_model_parallel_size = 4
    cfg.model.virtual_pipeline_model_parallel_size = 5
    cfg.model.context_parallel_size = 2
    cfg.model.sequence_parallel = True
